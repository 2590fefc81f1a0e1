"""The Responses dialect's answer: one object, or the events by which it grows.

The whole answer is built as if it had been streamed, so that the two cannot differ.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.capture import Capture
from agent.dialects.deltas import Kind, Piece, first_choice, pieces
from agent.event_stream import event
from memory.errors import DenizenError

PREFIXES = {Kind.REASONING: "rs", Kind.TEXT: "msg", Kind.CALL: "fc"}
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


@dataclass(kw_only=True, slots=True)
class Growing:
    """One output item as it grows."""

    first: Piece  # names a call
    id: str
    index: int
    text: list[str] = field(default_factory=list)
    is_open: bool = True

    def view(self, status: str) -> dict[str, Any]:
        """Return the item as a client sees it."""
        text = "".join(self.text)
        if self.first.kind is Kind.REASONING:
            content = [{"type": "reasoning_text", "text": text}]
            return {"type": "reasoning", "id": self.id, "summary": [], "content": content}
        if self.first.kind is Kind.CALL:
            named = {"call_id": self.first.call_id, "name": self.first.name, "arguments": text}
            return {"type": "function_call", "id": self.id, **named, "status": status}
        spoken = {"role": "assistant", "content": [_text_part(text)], "status": status}
        return {"type": "message", "id": self.id, **spoken}


class ResponseReply:
    """Tells one client the answer as items.

    Args:
        capture: what has come of the answer.
        echo: the request's parameters, which every response object repeats.
    """

    def __init__(self, capture: Capture, echo: Mapping[str, Any]) -> None:
        self._capture = capture
        self._echo = echo
        self._created_at = int(time.time())
        self._items: list[Growing] = []
        self._num_events = 0

    def body(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the response object."""
        for _ in self._grow(first_choice(answer, "message")):
            pass
        return self._final()

    def events(self, chunk: dict[str, Any]) -> Iterable[bytes]:
        """Yield what a chunk adds."""
        if not self._num_events:
            opening = self._response(IN_PROGRESS, [])
            yield self._event("response.created", response=opening)
            yield self._event("response.in_progress", response=opening)
        yield from self._grow(first_choice(chunk, "delta"))

    def end(self) -> Iterable[bytes]:
        """Close what is open and repeat the whole."""
        for item in self._items:
            yield from self._close(item)
        final = self._final()
        yield self._event(f"response.{final['status']}", response=final)

    def failure(self, error: DenizenError) -> Iterable[bytes]:
        """Tell of the error twice: for clients that raise, and for those that look for a status."""
        told = error.body()["error"]
        yield self._event("error", message=error.message, code=error.code, param=None, error=told)
        failed = {"code": "server_error", "message": error.message}
        response = self._response("failed", self._views(INCOMPLETE)) | {"error": failed}
        yield self._event("response.failed", response=response)

    def _grow(self, said: Mapping[str, Any]) -> Iterator[bytes]:
        for piece in pieces(said):
            item = self._open_item(piece)
            if item is None:
                yield from self._begin(piece)
                item = self._items[-1]
            if piece.text:
                item.text.append(piece.text)
                yield self._delta(item, piece.text)

    def _open_item(self, piece: Piece) -> Growing | None:
        return next((i for i in self._items if i.is_open and i.first.key == piece.key), None)

    def _begin(self, piece: Piece) -> Iterator[bytes]:
        """Add an item; thoughts and text end where something else begins, calls may interleave."""
        for item in self._items:
            if item.first.kind is not Kind.CALL:
                yield from self._close(item)
        index = len(self._items)
        item_id = f"{PREFIXES[piece.kind]}_{self._capture.id}_{index}"
        item = Growing(first=piece, id=item_id, index=index)
        self._items.append(item)
        shown = item.view(IN_PROGRESS)
        if piece.kind is not Kind.CALL:
            shown["content"] = []
        yield self._event("response.output_item.added", output_index=index, item=shown)
        if piece.kind is Kind.TEXT:
            yield self._about(item, "content_part.added", content_index=0, part=_text_part(""))

    def _delta(self, item: Growing, text: str) -> bytes:
        if item.first.kind is Kind.CALL:
            return self._about(item, "function_call_arguments.delta", delta=text)
        if item.first.kind is Kind.REASONING:
            return self._about(item, "reasoning_text.delta", content_index=0, delta=text)
        return self._about(item, "output_text.delta", content_index=0, delta=text, logprobs=[])

    def _close(self, item: Growing) -> Iterator[bytes]:
        if not item.is_open:
            return
        item.is_open = False
        text = "".join(item.text)
        if item.first.kind is Kind.CALL:
            yield self._about(
                item, "function_call_arguments.done", name=item.first.name, arguments=text
            )
        elif item.first.kind is Kind.REASONING:
            yield self._about(item, "reasoning_text.done", content_index=0, text=text)
        else:
            yield self._about(item, "output_text.done", content_index=0, text=text, logprobs=[])
            yield self._about(item, "content_part.done", content_index=0, part=_text_part(text))
        shown = item.view(self._status())
        yield self._event("response.output_item.done", output_index=item.index, item=shown)

    def _status(self) -> str:
        return INCOMPLETE if self._cut_reason() else COMPLETED

    def _cut_reason(self) -> str | None:
        choice = self._capture.choices.get(0)
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        return None if choice is None else reasons.get(choice.finish_reason or "")

    def _final(self) -> dict[str, Any]:
        response = self._response(self._status(), self._views(self._status()))
        reason = self._cut_reason()
        return response | {
            "incomplete_details": None if reason is None else {"reason": reason},
            "usage": _usage(self._capture.usage),
        }

    def _views(self, status: str) -> list[dict[str, Any]]:
        return [item.view(status) for item in self._items]

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._capture.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": output,
            "usage": None,
            **self._echo,
        }

    def _about(self, item: Growing, name: str, /, **fields: Any) -> bytes:
        return self._event(f"response.{name}", item_id=item.id, output_index=item.index, **fields)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        body = {"type": name, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event(body, name)


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the engine's usage under this dialect's names."""
    if usage is None:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    # Clients add the details up, and the dialect has no word for what the engine does not say.
    return {
        "input_tokens": usage.get("prompt_tokens"),
        "input_tokens_details": {"cached_tokens": cached or 0},
        "output_tokens": usage.get("completion_tokens"),
        "output_tokens_details": {"reasoning_tokens": thought or 0},
        "total_tokens": usage.get("total_tokens"),
    }
