"""What is a secret by its form, and what only looks like one."""

import random

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
]


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


def test_presidio_that_is_not_installed_is_named():
    with pytest.raises(ConfigError, match="presidio-analyzer is not installed"):
        redactor_of(PrivacyConfig(engine="presidio"), known=())
