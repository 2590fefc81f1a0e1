"""What a chunk of a chat completion says, piece by piece and in order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What a piece belongs to."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Some more of the thinking, of the text, or of one tool call's arguments.

    Example:
        ``Piece(kind=Kind.CALL, text='{"x"', index=1, call_id="call_8", name="add")``
    """

    kind: Kind
    text: str
    index: int = 0  # which tool call
    call_id: str | None = None  # on a tool call's first piece
    name: str | None = None

    @property
    def key(self) -> tuple[Kind, int]:
        """Pieces of one key make up one whole."""
        return self.kind, self.index


def first_choice(body: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """Return the message or delta of an answer's only choice; empty where there is none."""
    choices = body.get("choices") or [{}]
    said: Mapping[str, Any] = choices[0].get(part) or {}
    return said


def pieces(delta: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the pieces of a delta, or of a whole message; never an empty text."""
    thought = delta.get("reasoning") or delta.get("reasoning_content")
    if isinstance(thought, str) and thought:
        yield Piece(kind=Kind.REASONING, text=thought)
    text = delta.get("content")
    if isinstance(text, str) and text:
        yield Piece(kind=Kind.TEXT, text=text)
    for position, fragment in enumerate(delta.get("tool_calls") or ()):
        function = fragment.get("function") or {}
        yield Piece(
            kind=Kind.CALL,
            text=function.get("arguments") or "",
            index=fragment.get("index", position),
            call_id=fragment.get("id"),
            name=function.get("name"),
        )
