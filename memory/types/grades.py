"""What graders say of an answer, and what comes of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class GradeKind(StrEnum):
    """Who scored; the order is the precedence when grades are merged."""

    CHECK = "check"
    PERSON = "person"
    JUDGE = "judge"
    REACTION = "reaction"  # what the user did next: evidence that is shown and decides nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """One grader's score of one answer.

    Example:
        ``Grade(kind=GradeKind.CHECK, grader="contains", version="1", value=0.5, explanation="'12'
        found in 8 characters")``
    """

    kind: GradeKind
    grader: str
    version: str
    value: float | None  # in [0, 1]; None: could not score
    unscored_reason: str | None = None
    explanation: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is None:
            if not self.unscored_reason:
                raise ValueError(f"grade of {self.grader!r} has no value and no unscored_reason")
        elif not 0.0 <= self.value <= 1.0:
            raise ValueError(f"grade of {self.grader!r} is {self.value}, outside [0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The merged grades of an episode, and which kind of grader decided."""

    value: float | None
    provenance: GradeKind | None  # None: nothing could score
    num_grades: int
    unscored_reason: str | None = None
