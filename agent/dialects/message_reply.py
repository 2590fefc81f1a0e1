"""The Messages dialect's answer: one message, or the events by which its blocks grow.

A stream has one block open at a time, as every client expects: of tool calls that interleave the
first streams, and the others follow whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from agent.capture import Capture
from agent.dialects.deltas import Kind, Piece, first_choice, pieces
from agent.dialects.errors import anthropic_body
from agent.event_stream import event
from memory.errors import DenizenError

REASONS = {"length": "max_tokens", "content_filter": "refusal"}


class MessageReply:
    """Tells one client the answer as content blocks.

    Args:
        capture: what has come of the answer.
        model: the name the client used.
    """

    def __init__(self, capture: Capture, model: str) -> None:
        self._capture = capture
        self._model = model
        self._num_blocks = -1  # none: not even the message has begun
        self._open: Piece | None = None
        self._held: dict[tuple[Kind, int], list[Piece]] = {}

    def body(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the whole message."""
        said = first_choice(answer, "message")
        reason, sequence = self._stop(bool(said.get("tool_calls")))
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return self._message(_blocks(said)) | ended

    def events(self, chunk: dict[str, Any]) -> Iterable[bytes]:
        """Yield what a chunk adds."""
        if self._num_blocks < 0:
            self._num_blocks = 0
            yield _event("message_start", message=self._message([]))
            yield _event("ping")
        for piece in pieces(first_choice(chunk, "delta")):
            yield from self._grow(piece)

    def end(self) -> Iterable[bytes]:
        """Close what is open, send what was held, and say why the answer ended."""
        yield from self._close()
        for held in self._held.values():
            for piece in held:
                yield from self._append(piece)
            yield from self._close()
        choice = self._capture.choices.get(0)
        reason, sequence = self._stop(choice is not None and bool(choice.tool_calls))
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        yield _event("message_delta", delta=ended, usage=self._usage())
        yield _event("message_stop")

    def failure(self, error: DenizenError) -> Iterable[bytes]:
        """Tell of the error; no stop follows."""
        return (event(anthropic_body(error), "error"),)

    def _grow(self, piece: Piece) -> Iterator[bytes]:
        is_call_open = self._open is not None and self._open.kind is Kind.CALL
        if self._open is not None and is_call_open and self._open.key != piece.key:
            self._held.setdefault(piece.key, []).append(piece)
        else:
            yield from self._append(piece)

    def _append(self, piece: Piece) -> Iterator[bytes]:
        """Add to the open block, or close it and begin another."""
        if self._open is None or self._open.key != piece.key:
            yield from self._close()
            self._open = piece
            yield self._about("content_block_start", content_block=_opening(piece))
        if piece.text:
            yield self._about("content_block_delta", delta=_delta(piece))

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield self._about("content_block_stop")
            self._open = None
            self._num_blocks += 1

    def _about(self, name: str, /, **fields: Any) -> bytes:
        return _event(name, index=self._num_blocks, **fields)

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._capture.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _stop(self, has_calls: bool) -> tuple[str, str | None]:
        """Return why the answer ended, and the sequence that ended it.

        Whatever the engine calls it, an answer with calls that ended by itself waits for tools.
        """
        choice = self._capture.choices.get(0)
        reason = None if choice is None else choice.finish_reason
        if choice is None or reason in REASONS:
            return REASONS.get(reason or "", "end_turn"), None
        if has_calls:
            return "tool_use", None
        if isinstance(choice.stop_reason, str):
            return "stop_sequence", choice.stop_reason
        return "end_turn", None

    def _usage(self) -> dict[str, Any]:
        """Return the engine's count; before it has come, of the tokens that have."""
        usage = self._capture.usage or {}
        num_prompt = len(self._capture.prompt_token_ids or ())
        num_said = sum(len(choice.token_ids) for choice in self._capture.choices.values())
        return {
            "input_tokens": usage.get("prompt_tokens", num_prompt),
            "output_tokens": usage.get("completion_tokens", num_said),
        }


def _blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a whole message's blocks."""
    return [
        {**_opening(piece), "input": _input(piece.text)}
        if piece.kind is Kind.CALL
        else {**_opening(piece), _FIELD[piece.kind]: piece.text}
        for piece in pieces(message)
    ]


_FIELD = {Kind.TEXT: "text", Kind.REASONING: "thinking"}


def _opening(piece: Piece) -> dict[str, Any]:
    if piece.kind is Kind.CALL:
        return {"type": "tool_use", "id": piece.call_id, "name": piece.name, "input": {}}
    if piece.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _delta(piece: Piece) -> dict[str, Any]:
    if piece.kind is Kind.CALL:
        return {"type": "input_json_delta", "partial_json": piece.text}
    name = _FIELD[piece.kind]
    return {"type": f"{name}_delta", name: piece.text}


def _input(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object; of arguments that were cut off, what there is."""
    try:
        read = from_json(arguments, allow_partial=True)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def _event(name: str, /, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)
