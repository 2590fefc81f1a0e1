"""What is a secret by its form, and what only looks like one."""

import random
import sys
import time
from types import SimpleNamespace

import pytest
from reasoning_gym.factory import DATASETS

from graders import reasoning
from memory.errors import ConfigError, DenizenError
from memory.privacy import PrivacyConfig, redactor_of
from memory.redaction import PatternRedactor

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
SECRETS = [
    "sk-proj-a1B2c3D4e5F6g7H8",
    "sk-" + "a" * 24,
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_" + "a1B2" * 9,
    "github_pat_" + "a1B2_" * 6,
    "glpat-a1b2c3d4e5f6g7h8i9j0",
    JWT,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "bob.smith+x@mail.example.co.uk",
    "+49 170 1234567",
    "+12025550123",
    "(202) 555-0123",
    "202-555-0123",
    "4242 4242 4242 4242",
    "4242-4242-4242-4242",
    "378282246310005",
]
IN_PLACE = [
    ("Authorization: Bearer abcDEF123.-_", "Authorization: Bearer ", "abcDEF123.-_"),
    ('{"x-api-key": "9f8e7d6c5b4a"}', '{"x-api-key": "', "9f8e7d6c5b4a"),
    ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENGbPxRfiCY", "AWS_SECRET_ACCESS_KEY=", "wJalrX"),
    ("postgres://app:hunter2@db.example/x", "postgres://app:", "hunter2"),
    ("GET /p?api_key=abcd1234&page=2", "GET /p?api_key=", "abcd1234"),
    ("my phone number is 0170 1234567.", "my phone number is ", "0170 1234567"),
    ("phone = +4917012345678 at home", "phone = ", "+4917012345678"),
    ("phone: 202.555.0123", "phone: ", "202.555.0123"),
    ('call("+12025550123")', 'call("', "+12025550123"),
    ("api_key = abcd1234efgh5678.", "api_key = ", "abcd1234efgh5678"),
    ("api_key = 'ya29.a0AfH6SMB-x7'", "api_key = '", "ya29.a0AfH6SMB-x7"),
    (r"{\"api_key\": \"abcd1234efgh5678\"}", r"{\"api_key\": \"", "abcd1234efgh5678"),
    (r"is:\nsk-proj-abcDEF1234567890abcd", r"is:\n", "sk-proj-abc"),
    (r"is:\nAKIAIOSFODNN7EXAMPLE", r"is:\n", "AKIA"),
    (r"at\nbob@example.com", r"at\n", "bob@"),
]
HARMLESS = [
    "12345678 * 3",
    "4242424242424242 * 3 = ?",
    "3 + 4242424242424242",
    "7 +1234567890 = ?",
    "1234567812345678",  # Luhn fails, and no issuer begins with 1
    "git@github.com:a/b.git",
    "task-a1b2c3d4e5f6g7h8",
    "the bearer certificate of the company",
    "2026-01-01 12:30:00.123456",
    "IP 192.168.100.200, version 1.22.333.4444",
    "password: something",
    "@pytest.mark.parametrize",
    "x = a@b",
    "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]",
    "api_key = config2.get_value(name)",
    "access_token = response1.json_body",
    "auth_token=request.headers2",
    "client_secret: settings.v2.client_secret",
    "secret_key = derive_key_v2(password)",
    "A@B.transpose(0)",
    "x@y.shape",
    "w@x.to(1)",
    "x@y.at.numpy",
    "x = +1234567890",
    "y = f(a, +12345678901)",
    "version 100.200.3000",
    "sk-button-primary-2",
    "sk-learn-pipeline-v2",
    "postgres://app:{password}@db.example/x",
]
LONG_FORMS = {
    "a scheme": lambda size: "deadbeef" * (size // 8) + " http://x",
    "the beginning of a key": lambda size: "-----BEGIN PRIVATE KEY-----" * (size // 27),
    "a key without end": lambda size: "-----BEGIN PRIVATE KEY-----" + "- -" * (size // 3),
    "the beginning of a token": lambda size: "-eyJ" * (size // 4),
    "the parts of a token": lambda size: "eyJabcdefgh." * (size // 12),
    "sk": lambda size: "sk-" * (size // 3),
    "key=": lambda size: "key=" * (size // 4),
    "api_key=": lambda size: "api_key=a1" * (size // 10),
    "key and spaces": lambda size: "key" + " " * size,
    "bearer and spaces": lambda size: "Bearer " * (size // 14) + " " * (size // 2),
    "digits": lambda size: "1" * size,
    "digits and dashes": lambda size: "11111" + "-" * size,
    "at": lambda size: "a@" * (size // 2),
    "a host": lambda size: "a@" + "a." * (size // 2),
    "a query": lambda size: "?" + "key" * (size // 3),
    "telephones": lambda size: "tel 1" * (size // 5) + "1234567890",
    "plus": lambda size: "+1 " * (size // 3),
    "f(+": lambda size: "f(+12345678901" * (size // 14),
    "URLs": lambda size: "a://" * (size // 4),
    "passwords": lambda size: "a://b:" + "c" * size,
}


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_replaced_by_a_mark(secret):
    redactor = PatternRedactor()
    text = f"here it is: {secret}, as you asked"
    clean = redactor.redact(text)
    assert redactor.may_hold(text)
    assert secret not in clean
    assert clean.startswith("here it is: [") and clean.endswith("], as you asked")


@pytest.mark.parametrize(("text", "before", "secret"), IN_PLACE)
def test_only_the_secret_part_is_replaced(text, before, secret):
    redactor = PatternRedactor()
    clean = redactor.redact(text)
    assert redactor.may_hold(text)
    assert clean.startswith(before + "[")
    assert secret not in clean


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays(text):
    assert PatternRedactor().redact(text) == text


@pytest.mark.parametrize("form", LONG_FORMS)
def test_time_grows_no_faster_than_a_text(form):
    """Four times the text takes about four times as long; sixteen where a run is read again."""
    redactor = PatternRedactor()

    def seconds(size: int) -> float:
        text = LONG_FORMS[form](size)
        began = time.perf_counter()
        redactor.may_hold(text)
        redactor.redact(text)
        return time.perf_counter() - began

    shorter, whole = (min(seconds(size) for _ in range(3)) for size in (250_000, 1_000_000))
    assert whole < 9 * shorter


def test_equal_secrets_get_equal_marks_and_others_different_ones():
    clean = PatternRedactor().redact("a@x.example b@x.example a@x.example").split("]")
    assert clean[0] == clean[2].strip() != clean[1].strip()


def test_marks_of_two_processes_differ():
    text = "a@x.example"
    assert PatternRedactor().redact(text) != PatternRedactor().redact(text)


def test_what_was_redacted_is_not_redacted_again():
    redactor = PatternRedactor()
    once = redactor.redact(" ".join(SECRETS))
    assert redactor.redact(once) == once


def test_only_the_wanted_kinds_are_replaced():
    redactor = PatternRedactor(["emails"])
    clean = redactor.redact("a@x.example 202-555-0123")
    assert "202-555-0123" in clean and "a@x" not in clean
    assert not redactor.may_hold("202-555-0123")


def test_the_services_own_keys_are_found_as_they_stand():
    redactor = PatternRedactor([], known=["my own key", "short"])
    assert redactor.may_hold("use my own key.")
    assert "my own" not in redactor.redact("use my own key.")
    assert redactor.redact("short") == "short"


def test_nothing_is_missed_by_the_cheap_look():
    rng = random.Random(5)
    redactor = PatternRedactor()
    for _ in range(300):
        words = rng.choices([*SECRETS, *HARMLESS, "and", "so on"], k=4)
        text = " | ".join(words)
        assert redactor.may_hold(text) or redactor.redact(text) == text


def test_no_task_of_reasoning_gym_looks_like_a_secret():
    redactor, found, num_families = PatternRedactor(), [], 0
    for family in sorted(
        name for name in DATASETS if not name.startswith("arc_")
    ):  # it leaks files
        try:
            tasks = reasoning.generate(family, n=5, seed=3, settings={})
        except DenizenError:  # a family that needs settings
            continue
        num_families += 1
        texts = [text for task in tasks for text in (task["question"], str(task["answer"]))]
        found += [(family, text) for text in texts if redactor.redact(text) != text]
    assert found == []
    assert num_families > 80


@pytest.mark.parametrize(
    "family",
    ["products", "chain_sum", "gcd", "decimal_arithmetic", "lcm", "caesar_cipher"],
)
def test_no_task_of_this_family_looks_like_a_secret(family):
    redactor = PatternRedactor()
    for task in reasoning.generate(family, n=100, seed=7, settings={}):
        assert redactor.redact(task["question"]) == task["question"]


def found(start: int, end: int, kind: str, score: float) -> SimpleNamespace:
    return SimpleNamespace(start=start, end=end, entity_type=kind, score=score)


@pytest.mark.parametrize(
    ("text", "finds", "clean"),
    [
        (  # a card whose first digits look like a telephone
            "pay 4111 1111 1111 1111 at once",
            [found(4, 23, "CREDIT_CARD", 1.0), found(4, 18, "PHONE_NUMBER", 0.5)],
            "pay [credit_card] at once",
        ),
        (
            "a 0123456789 b",
            [found(6, 12, "PHONE_NUMBER", 0.6), found(2, 8, "CREDIT_CARD", 0.6)],
            "a [credit_card] b",
        ),
        (
            "0123456789",
            [found(0, 6, "A", 0.6), found(4, 8, "B", 0.9), found(7, 10, "C", 0.7)],
            "[b]",
        ),
        ("ab cd", [found(0, 2, "A", 0.6), found(2, 5, "B", 0.6)], "[a][b]"),
    ],
)
def test_finds_of_presidio_that_overlap_are_one(monkeypatch, text, finds, clean):
    stub = SimpleNamespace(analyze=lambda *_, **__: finds)
    module = SimpleNamespace(AnalyzerEngine=lambda: stub)
    monkeypatch.setitem(sys.modules, "presidio_analyzer", module)
    assert redactor_of(PrivacyConfig(engine="presidio"), known=()).redact(text) == clean


def test_presidio_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="presidio-analyzer is not installed"):
        redactor_of(PrivacyConfig(engine="presidio"), known=())
