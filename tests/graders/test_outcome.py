import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graders.outcome import is_advisory, merge
from memory.types import Grade, GradeKind

CHECK, PERSON, JUDGE = GradeKind.CHECK, GradeKind.PERSON, GradeKind.JUDGE


def grade(kind: GradeKind, value: float | None, reason: str = "too long") -> Grade:
    return Grade(
        kind=kind,
        grader=f"a {kind}",
        version="1",
        value=value,
        unscored_reason=None if value is not None else reason,
    )


class Trusting:
    """Trusts the judges of one version in one skill."""

    def doubt(self, grader: str, version: str, skill_id: int | None) -> str | None:
        is_trusted = (version, skill_id) == ("1", 7)
        return None if is_trusted else "judge not trusted yet: 12 of 30 pairs"


@pytest.mark.parametrize(
    ("grades", "value", "provenance", "num"),
    [
        ([grade(JUDGE, 1.0), grade(PERSON, 0.5), grade(CHECK, 0.25)], 0.25, CHECK, 1),
        ([grade(JUDGE, 1.0), grade(PERSON, 0.5)], 0.5, PERSON, 1),
        ([grade(JUDGE, 1.0)], 1.0, JUDGE, 1),
        ([grade(PERSON, 1.0), grade(PERSON, 0.0), grade(PERSON, 0.5)], 0.5, PERSON, 3),
        # A check that could not score lets the person decide, and is no 0.
        ([grade(CHECK, None), grade(PERSON, 1.0)], 1.0, PERSON, 1),
        ([grade(CHECK, None), grade(CHECK, 0.5)], 0.5, CHECK, 1),
    ],
)
def test_the_strongest_kind_that_scored_decides(
    grades: list[Grade], value: float, provenance: GradeKind, num: int
) -> None:
    outcome = merge(grades, trust=Trusting(), skill_id=7)
    assert (outcome.value, outcome.provenance, outcome.num_grades) == (value, provenance, num)
    assert outcome.unscored_reason is None


def test_nothing_scored_has_no_value_and_every_reason_once() -> None:
    outcome = merge([grade(CHECK, None, "no reference")] * 2 + [grade(JUDGE, None, "time-out")])
    assert outcome.value is None
    assert outcome.provenance is None
    assert outcome.num_grades == 0
    assert outcome.unscored_reason == "a check: no reference; a judge: time-out"


@pytest.mark.parametrize("skill_id", [None, 8])
def test_an_advisory_judge_gives_no_outcome_and_says_what_is_missing(skill_id: int | None) -> None:
    grades = [grade(JUDGE, 1.0), grade(CHECK, None, "no reference")]
    outcome = merge(grades, trust=Trusting(), skill_id=skill_id)
    assert (outcome.value, outcome.provenance, outcome.num_grades) == (None, None, 0)
    assert outcome.unscored_reason == (
        "judge not trusted yet: 12 of 30 pairs; a check: no reference"
    )
    assert is_advisory(grades, outcome)


def test_an_advisory_judge_does_not_enter_the_mean_of_a_trusted_one() -> None:
    other = Grade(kind=JUDGE, grader="another", version="2", value=0.0)
    outcome = merge([grade(JUDGE, 1.0), other], trust=Trusting(), skill_id=7)
    assert (outcome.value, outcome.num_grades) == (1.0, 1)
    assert not is_advisory([grade(JUDGE, 1.0), other], outcome)


def test_a_judge_that_failed_is_no_advice() -> None:
    grades = [grade(JUDGE, None, "time-out")]
    assert not is_advisory(grades, merge(grades, trust=Trusting(), skill_id=8))


def test_without_trust_no_judge_decides() -> None:
    outcome = merge([grade(JUDGE, 1.0)])
    assert (outcome.value, outcome.unscored_reason) == (
        None,
        "judge not trusted: nobody measures it",
    )


def test_no_grades_at_all_says_so() -> None:
    assert merge([]).unscored_reason == "no grades"


@given(st.lists(st.floats(0.0, 1.0), min_size=1), st.lists(st.floats(0.0, 1.0)))
def test_outcome_is_the_exact_mean_of_checks_whatever_others_say(
    checks: list[float], persons: list[float]
) -> None:
    grades = [grade(PERSON, value) for value in persons] + [grade(CHECK, v) for v in checks]
    value = merge(grades).value
    assert value is not None
    assert 0.0 <= value <= 1.0
    assert math.isclose(value, math.fsum(checks) / len(checks))
    assert merge(list(reversed(grades))) == merge(grades)
