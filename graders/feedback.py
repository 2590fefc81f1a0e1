"""What people say of an answer: its form on the wire, and the grades made of it.

Knows nothing of where feedback is kept, and not whether the call or episode it names exists.
"""

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from memory.types import Feedback, Grade, GradeKind
from memory.wire import parse_body

_MAX_CHARACTERS = 20_000

# Strict: "yes" or "0.5" as text is a caller's mistake, not a score.
Value = StrictBool | Annotated[float, Field(strict=True, ge=0.0, le=1.0, allow_inf_nan=False)]


class FeedbackBody(BaseModel):
    """The body of ``POST /v1/feedback``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    completion_id: str | None = Field(default=None, min_length=1, max_length=200)
    """The ``id`` of a completion; give this or ``episode_id``."""
    episode_id: str | None = Field(default=None, min_length=1, max_length=200)
    """The episode; give this or ``completion_id``."""
    value: Value
    """true or false, or a number in [0, 1]."""
    comment: str | None = Field(default=None, max_length=_MAX_CHARACTERS)
    """Why, in words."""
    correction: str | None = Field(default=None, min_length=1, max_length=_MAX_CHARACTERS)
    """What the answer should have been."""
    source: str = Field(default="user", min_length=1, max_length=100)
    """Who says so; of each source the newest value on an answer counts."""

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.completion_id is None) == (self.episode_id is None):
            raise ValueError("give either completion_id or episode_id")
        return self

    @property
    def score(self) -> float:
        """The value as a number: a thumb is 0 or 1."""
        return float(self.value)


def read_feedback(body: object) -> FeedbackBody:
    """Read the body of ``POST /v1/feedback``.

    Raises:
        InvalidRequestError: The first fault, with ``param``.
    """
    return parse_body(FeedbackBody, body)


def grade_feedback(feedbacks: Sequence[Feedback]) -> list[Grade]:
    """Turn the feedbacks on one episode into grades, one per target and source.

    Of what a source said of one answer, or of the episode, the newest counts: people change their
    mind. Among equally old ones the last given counts.
    """
    newest: dict[tuple[str | None, str], Feedback] = {}
    for feedback in sorted(feedbacks, key=lambda given: given.created_at):
        newest[feedback.call_id, feedback.source] = feedback
    return [_grade(feedback) for feedback in newest.values()]


def newest_correction(feedbacks: Sequence[Feedback]) -> str | None:
    """Return what the answer should have been, as said last; None when nobody said."""
    corrections = [given for given in feedbacks if given.correction is not None]
    return max(corrections, key=lambda given: given.created_at).correction if corrections else None


def _grade(feedback: Feedback) -> Grade:
    return Grade(
        kind=GradeKind.PERSON,
        grader=feedback.source,
        version="1",
        value=feedback.value,
        explanation=feedback.comment or "",
        evidence={"feedback_id": feedback.id, "call_id": feedback.call_id},
    )
