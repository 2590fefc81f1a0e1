"""Merges the grades of an episode into one outcome that says who decided it.

It does not know how a judge earns trust.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from memory.types import Grade, GradeKind, Outcome

DECIDING = (GradeKind.CHECK, GradeKind.PERSON, GradeKind.JUDGE)


class Trust(Protocol):
    """Knows which judges may teach which skills."""

    def doubt(self, grader: str, version: str, skill_id: int | None) -> str | None:
        """Say why a judge's grades on a skill are not trained on; None: they are."""


class NoTrust:
    """Trusts no judge: what holds where nothing is known of any."""

    def doubt(self, grader: str, version: str, skill_id: int | None) -> str | None:
        """Doubt it."""
        return "judge not trusted: nobody measures it"


def merge(
    grades: Sequence[Grade], *, trust: Trust | None = None, skill_id: int | None = None
) -> Outcome:
    """Merge by precedence: check > person > trusted judge.

    The first kind that has a scored grade decides, with the mean of its scored grades; a grade
    without a value never counts as 0, the grade of a judge that is not trusted in this skill does
    not count at all, and a user's reaction decides nothing. ``num_grades`` is how many entered the
    mean. When nothing decides the value is None and the reason joins the graders' own.

    Args:
        grades: those in force, of one answer.
        trust: knows which judges may teach; without it none may.
        skill_id: the skill that the answer belongs to; None: none was found yet.
    """
    doubts = _doubts(grades, trust or NoTrust(), skill_id)
    for kind in DECIDING:
        values = [
            grade.value
            for grade, doubt in zip(grades, doubts, strict=True)
            if grade.kind is kind and grade.value is not None and doubt is None
        ]
        if values:
            return Outcome(value=fmean(values), provenance=kind, num_grades=len(values))
    reasons = dict.fromkeys(
        doubt if grade.value is not None and doubt else f"{grade.grader}: {grade.unscored_reason}"
        for grade, doubt in zip(grades, doubts, strict=True)
        if grade.kind in DECIDING
    )
    return Outcome(
        value=None,
        provenance=None,
        num_grades=0,
        unscored_reason="; ".join(reasons) or "no grades",
    )


def is_advisory(grades: Sequence[Grade], outcome: Outcome) -> bool:
    """Whether a judge gave a value, but none that counts: the outcome is missing for want of trust.

    Args:
        grades: what was merged.
        outcome: what came of it.
    """
    has_judged = any(g.kind is GradeKind.JUDGE and g.value is not None for g in grades)
    return outcome.value is None and has_judged


def _doubts(grades: Sequence[Grade], trust: Trust, skill_id: int | None) -> list[str | None]:
    return [
        trust.doubt(grade.grader, grade.version, skill_id)
        if grade.kind is GradeKind.JUDGE
        else None
        for grade in grades
    ]
