"""What is kept of an answer, token for token, and what the client sees of it.

The engine is asked for token ids and log-probabilities on every call; a client that did not ask
sees exactly what it would have seen without. Nothing is re-tokenised; an unknown log-probability is
None.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from memory.types import Message

LOGPROB_FLOOR = -9_999.0  # vLLM writes this for "minus infinity"; it is no measurement


@dataclass(slots=True)
class CapturedChoice:
    """One choice as it grows."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish_reason: str | None = None

    def absorb(self, delta: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Add a chunk (or a whole message) and the tokens that came with it."""
        if isinstance(delta.get("content"), str):
            self.content.append(delta["content"])
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if isinstance(thought, str):
            self.reasoning.append(thought)
        for position, fragment in enumerate(delta.get("tool_calls") or ()):
            self._absorb_tool_call(fragment, position)
        self.token_ids += choice.get("token_ids") or ()
        entries = (choice.get("logprobs") or {}).get("content") or ()
        self.logprobs += [_measured(entry.get("logprob")) for entry in entries]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _absorb_tool_call(self, fragment: Mapping[str, Any], position: int) -> None:
        call = self.tool_calls.setdefault(
            fragment.get("index", position),
            {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
        )
        call["id"] = fragment.get("id") or call["id"]
        function = fragment.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def known_logprobs(self) -> list[float | None] | None:
        """Return one log-probability a token; None where the engine did not give one for each."""
        if not self.token_ids or len(self.logprobs) != len(self.token_ids):
            return None
        return self.logprobs

    def message(self) -> Message | None:
        """Return the assistant's message so far, or None when nothing has come.

        Where there is no text its content is "", also when the engine says null: a stream does not
        tell the two apart.
        """
        if not (self.content or self.reasoning or self.tool_calls or self.token_ids):
            return None
        message: Message = {"role": "assistant", "content": "".join(self.content)}
        if self.reasoning:
            message["reasoning"] = "".join(self.reasoning)
        if self.tool_calls:
            message["tool_calls"] = [self.tool_calls[index] for index in sorted(self.tool_calls)]
        return message


@dataclass(slots=True)
class Capture:
    """One answer of the engine, plain or streamed, as it arrives.

    Attributes:
        asked_logprobs: the client asked for log-probabilities itself.
        asked_token_ids: the client asked for token ids itself.
        asked_model: the name the client used; the engine's own name never reaches it.
    """

    asked_model: str
    asked_logprobs: bool
    asked_token_ids: bool
    id: str | None = None
    prompt_token_ids: list[int] | None = None
    usage: dict[str, Any] | None = None
    choices: dict[int, CapturedChoice] = field(default_factory=dict)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Keep a whole answer and return the client's view of it."""
        self._absorb(body, "message")
        return self._view(body)

    def chunk(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Keep one streamed chunk; return the client's view, None where it has nothing to see."""
        self._absorb(body, "delta")
        if self._is_capture_only(body):
            return None
        return self._view(body)

    def _absorb(self, body: Mapping[str, Any], part: str) -> None:
        self.id = self.id or body.get("id")
        if body.get("prompt_token_ids") is not None:
            self.prompt_token_ids = body["prompt_token_ids"]
        self.usage = body.get("usage") or self.usage
        for choice in body.get("choices") or ():
            captured = self.choices.setdefault(choice.get("index", 0), CapturedChoice())
            captured.absorb(choice.get(part) or {}, choice)

    def _is_capture_only(self, body: Mapping[str, Any]) -> bool:
        """Say whether a chunk exists only because token ids were asked for."""
        if self.asked_logprobs or self.asked_token_ids or not body.get("choices"):
            return False
        return all(
            choice.get("finish_reason") is None and not any((choice.get("delta") or {}).values())
            for choice in body["choices"]
        )

    def _view(self, body: dict[str, Any]) -> dict[str, Any]:
        body["model"] = self.asked_model
        if not self.asked_token_ids and "prompt_token_ids" in body:
            body["prompt_token_ids"] = None
        for choice in body.get("choices") or ():
            if not self.asked_token_ids and "token_ids" in choice:
                choice["token_ids"] = None
            if not self.asked_logprobs:
                choice["logprobs"] = None
        return body


def _measured(logprob: Any) -> float | None:
    if not isinstance(logprob, int | float) or logprob <= LOGPROB_FLOOR:
        return None
    return float(logprob)
