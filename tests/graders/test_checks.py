import math
import threading
import urllib.request
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graders.checks import Check, Score
from graders.json_check import JSON_SCHEMA
from graders.text_checks import (
    CONTAINS,
    EXACT,
    NORMALISED,
    REGEX,
    score_contains,
    score_exact,
    score_normalised,
)
from graders.types import Answer
from memory.types import Grade, GradeKind


def answer_of(text: str, reference: str | None = None, **config: object) -> Answer:
    return Answer(
        messages=({"role": "user", "content": "?"},),
        message={"role": "assistant", "content": text},
        reference=reference,
        config=config,
    )


async def grade(check: Check, text: str, reference: str | None = None, **config: Any) -> Grade:
    return await check.grade(answer_of(text, reference, **config))


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 1.0), (" 12\n", 1.0), ("The  Answer", 0.0), ("12.", 0.0), ("", 0.0), ("１２", 0.0)],
)
def test_exact_is_all_or_nothing(text: str, value: float) -> None:
    assert score_exact(answer_of(text, "12")).value == value


def test_exact_ignores_case_and_white_space() -> None:
    assert score_exact(answer_of(" the\n  ANSWER ", "The answer")).value == 1.0


@pytest.mark.parametrize(
    ("text", "reference", "share"),
    [
        ("12", "12", 1.0),
        ("It is 12", "12", 2 / 8),
        ("It  is\n12", "12", 2 / 8),  # white space is normalised before counting
        ("The answer is 12.", "12", 2 / 17),
        ("x=12", "12", 2 / 4),
        ("(12)", "12", 2 / 4),
        ("1-12", "12", 2 / 4),  # a range, no sign
        ("from PARIS", "Paris", 5 / 10),
        ("-12", "-12", 1.0),
        ("it is -12", "-12", 3 / 9),
        ("<b> here", "<b>", 3 / 8),
    ],
)
def test_contains_pays_by_brevity(text: str, reference: str, share: float) -> None:
    assert math.isclose(score_contains(answer_of(text, reference)).value, math.sqrt(share))


def test_contains_pays_an_honest_guess_more_than_a_list_of_numbers() -> None:
    every_digit = " ".join(map(str, range(10)))
    listed = score_contains(answer_of(every_digit, "7")).value
    assert listed < 0.25  # four numbers to choose from, and a guess is worth as much


@pytest.mark.parametrize(
    "text",
    [
        "112",
        "121",
        "a12",
        "12b",
        "12.5",
        "12,000",
        "1,12",
        "0.12",
        ".12",
        "-12",
        "= −12",
        "1 2",
        "",
    ],
)
def test_contains_does_not_find_12_in_another_number_or_word(text: str) -> None:
    assert score_contains(answer_of(text, "12")).value == 0.0


def test_contains_finds_a_later_whole_token_after_a_partial_one() -> None:
    assert math.isclose(score_contains(answer_of("112 or 12", "12")).value, math.sqrt(2 / 9))


@given(st.text(min_size=1).filter(str.strip), st.text())
def test_contains_agrees_with_exact_and_stays_in_range(reference: str, around: str) -> None:
    assert score_contains(answer_of(reference, reference)).value == 1.0
    value = score_contains(answer_of(f"{reference} {around}", reference)).value
    assert 0.0 <= value <= 1.0


@given(st.integers(0, 999), st.integers(0, 99_999))
def test_contains_of_a_bare_number_is_found_only_in_itself(reference: int, said: int) -> None:
    value = score_contains(answer_of(str(said), str(reference))).value
    assert value == float(reference == said)


@pytest.mark.parametrize("check", [EXACT, CONTAINS])
@pytest.mark.parametrize("reference", [None, "", "  \n"])
async def test_without_a_reference_nothing_is_scored(check: Check, reference: str | None) -> None:
    result = await grade(check, "12", reference)
    assert result.value is None
    assert "reference" in (result.unscored_reason or "")


async def test_grade_names_kind_grader_and_version_and_says_what_it_saw() -> None:
    result = await grade(CONTAINS, "It is 12", "12")
    assert (result.kind, result.grader, result.version) == (GradeKind.CHECK, "contains", "1")
    assert "It is 12" in result.explanation
    assert "8 characters" in result.explanation


async def test_explanations_of_long_answers_are_short() -> None:
    assert len((await grade(EXACT, "x" * 100_000, "y" * 100_000)).explanation) < 300


async def test_answer_with_only_tool_calls_counts_as_empty_text() -> None:
    answer = Answer(
        messages=(), message={"role": "assistant", "content": None, "tool_calls": []}, reference="a"
    )
    assert (await EXACT.grade(answer)).value == 0.0


async def test_regex_searches_and_anchors_match_the_whole() -> None:
    assert (await grade(REGEX, "it is 12", pattern=r"\d+")).value == 1.0
    assert (await grade(REGEX, "it is 12", pattern=r"^\d+$")).value == 0.0
    assert (await grade(REGEX, "12", pattern=r"^\d+$")).value == 1.0


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "pattern"),
        ({"pattern": 7}, "pattern"),
        ({"pattern": "("}, "malformed"),
        ({"pattern": "a" * 1001}, "longer"),
    ],
)
async def test_regex_without_a_usable_pattern_is_unscored(
    config: dict[str, Any], reason: str
) -> None:
    result = await grade(REGEX, "12", **config)
    assert result.value is None
    assert reason in (result.unscored_reason or "")


async def test_regex_that_backtracks_exponentially_is_unscored_and_does_not_hang() -> None:
    result = await grade(REGEX, "a" * 5_000 + "!", pattern=r"^(a|aa|a?a)+$")
    assert result.value is None
    assert "longer than" in (result.unscored_reason or "")


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1},
        "s": {"type": "string", "pattern": "^a+$"},
    },
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"n": 3}', 1.0),
        ('{"n": 3, "s": "aa"}', 1.0),
        ('{"n": 3, "s": "ab"}', 0.0),
        ('{"n": 0}', 0.0),
        ("{}", 0.0),
        ('Here: {"n": 3}', 0.0),
        ("", 0.0),
        ("[" * 100_000, 0.0),
    ],
)
async def test_json_schema_wants_the_whole_answer_to_be_valid(text: str, value: float) -> None:
    assert (await grade(JSON_SCHEMA, text, schema=SCHEMA)).value == value


async def test_json_schema_says_where_the_fault_is() -> None:
    result = await grade(JSON_SCHEMA, '{"n": 0}', schema=SCHEMA)
    assert "$.n" in result.explanation
    assert result.evidence == {"path": "$.n", "keyword": "minimum"}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "text",
        {"type": "nonsense"},
        {"$ref": "#"},  # refers to itself for ever
        {"patternProperties": {"(a+)+$": {}}},
    ],
)
async def test_json_schema_that_cannot_be_used_is_unscored(schema: object) -> None:
    result = await grade(JSON_SCHEMA, '{"aaaa": 1}', schema=schema)
    assert result.value is None
    assert result.unscored_reason


async def test_foreign_schema_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *request: fetched.append(request))
    result = await grade(JSON_SCHEMA, "1", schema={"$ref": "http://127.0.0.1:9/schema.json"})
    assert result.value is None
    assert fetched == []


@pytest.mark.parametrize("text", ["NaN", "Infinity", '{"a": -Infinity}'])
async def test_numbers_that_json_does_not_have_are_no_json(text: str) -> None:
    assert (await grade(JSON_SCHEMA, text, schema={})).value == 0.0


async def test_catastrophic_pattern_inside_a_schema_is_unscored() -> None:
    schema = {"type": "string", "pattern": "^(a|aa|a?a)+$"}
    result = await grade(JSON_SCHEMA, '"' + "a" * 5_000 + '!"', schema=schema)
    assert result.value is None
    assert "longer than" in (result.unscored_reason or "")


async def test_rule_that_raises_leaves_the_answer_unscored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(answer: Answer) -> Score:
        raise ZeroDivisionError("odd answer")

    result = await grade(Check(name="broken", score=broken), "12")
    assert result.value is None
    assert result.unscored_reason == "ZeroDivisionError: odd answer"
    assert "broken" in caplog.text


async def test_rule_that_leaves_the_range_leaves_the_answer_unscored() -> None:
    check = Check(name="wild", score=lambda answer: Score(value=1.5, explanation=""))
    assert (await grade(check, "12")).value is None


@pytest.mark.parametrize(
    ("text", "reference", "value"),
    [
        ("The Eiffel Tower.", "eiffel tower", 1.0),
        ("  an  answer ", "Answer!", 1.0),
        ("１２", "12", 1.0),
        ("“Paris”", "Paris", 1.0),
        ("-5", "5", 0.0),
        ("−5", "-5", 1.0),
        ("1.5", "15", 0.0),
        ("1,500", "1500", 1.0),
        ("1,5", "15", 0.0),
        ("well-known", "well known", 1.0),
        ("It is Paris", "Paris", 0.0),
        ("", "Paris", 0.0),
        ("theory", "ory", 0.0),
    ],
)
def test_normalised_compares_words(text: str, reference: str, value: float) -> None:
    assert score_normalised(answer_of(text, reference)).value == value


async def test_a_reference_of_punctuation_cannot_be_compared() -> None:
    assert (await grade(NORMALISED, "x", "?!")).unscored_reason is not None


@given(st.text(max_size=40))
def test_every_text_is_its_own_reference(text: str) -> None:
    answer = answer_of(text, text)
    for score in (score_exact, score_normalised):
        try:
            assert score(answer).value == 1.0
        except ValueError:  # nothing in it to compare
            continue


async def test_a_check_that_hangs_has_no_value() -> None:
    stop = threading.Event()
    check = Check(
        name="slow",
        score=lambda _: Score(value=float(stop.wait(10)), explanation=""),
        timeout_s=0.05,
    )
    found = await grade(check, "x")
    stop.set()
    assert found.unscored_reason == "it ran longer than 0.05 s"
