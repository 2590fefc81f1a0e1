"""Merges the grades of an episode into one outcome that says who decided it."""

from collections.abc import Sequence
from statistics import fmean

from memory.types import Grade, GradeKind, Outcome


def merge(grades: Sequence[Grade]) -> Outcome:
    """Merge by precedence: check > person > judge.

    The first kind that has a scored grade decides, with the mean of its scored grades; a grade
    without a value never counts as 0. ``num_grades`` is how many entered the mean. When nothing is
    scored the value is None and the reason joins the graders' own.
    """
    for kind in GradeKind:
        values = [grade.value for grade in grades if grade.kind is kind and grade.value is not None]
        if values:
            return Outcome(value=fmean(values), provenance=kind, num_grades=len(values))
    reasons = dict.fromkeys(f"{grade.grader}: {grade.unscored_reason}" for grade in grades)
    return Outcome(
        value=None,
        provenance=None,
        num_grades=0,
        unscored_reason="; ".join(reasons) or "no grades",
    )
