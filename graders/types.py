"""What is graded, and what a grader is.

The grade itself is a record of ``memory.types``, because the store keeps it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from memory.types import Grade, GradeKind, Message, message_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer with what it takes to judge it.

    Example:
        ``Answer(messages=({"role": "user", "content": "3 * 4 = ?"},),
        message={"role": "assistant", "content": "12"}, reference="12")``
    """

    messages: Sequence[Message]  # what was asked, without the answer
    message: Message  # the assistant's message as assembled, tool calls included
    reference: str | None = None  # the right answer
    config: Mapping[str, Any] = field(default_factory=dict)  # the task's ``grader_config``

    @property
    def text(self) -> str:
        """The answer's text; empty when the message holds tool calls only."""
        return message_text(self.message)


class Grader(Protocol):
    """Scores one answer."""

    @property
    def name(self) -> str:
        """Name the grader as ``metadata.grader`` does."""

    @property
    def version(self) -> str:
        """Name the scoring rule; grades of different versions are not comparable."""

    @property
    def kind(self) -> GradeKind:
        """Return whose judgement this is."""

    async def grade(self, answer: Answer) -> Grade:
        """Score an answer; what cannot be scored has no value and a reason, never 0."""
