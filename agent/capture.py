"""What is kept of an answer, token for token, as the engine reports it.

Nothing is re-tokenised; an unknown log-probability is None. It does not know what the client sees
of the answer.
"""

from collections.abc import Mapping, Sequence
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
    stop_reason: str | int | None = None  # the stop sequence or token that ended it

    def absorb(self, choice: Mapping[str, Any]) -> None:
        """Add a chunk, or a whole answer, and the tokens that came with it."""
        delta = _said(choice)
        if isinstance(delta.get("content"), str):
            self.content.append(delta["content"])
        thought = delta.get("reasoning") or delta.get("reasoning_content")
        if isinstance(thought, str):
            self.reasoning.append(thought)
        for position, fragment in enumerate(delta.get("tool_calls") or ()):
            self._absorb_tool_call(fragment, position)
        self.token_ids += choice.get("token_ids") or ()
        self.logprobs += [_measured(logprob) for logprob in _logprobs(choice)]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        self.stop_reason = choice.get("stop_reason") or self.stop_reason

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
    """One answer of the engine, plain or streamed, as it arrives."""

    id: str | None = None
    prompt_token_ids: list[int] | None = None
    usage: dict[str, Any] | None = None
    choices: dict[int, CapturedChoice] = field(default_factory=dict)

    def absorb(self, body: Mapping[str, Any]) -> None:
        """Keep a whole answer or one chunk of it, of chat or of a completion."""
        self.id = self.id or body.get("id")
        if body.get("prompt_token_ids") is not None:
            self.prompt_token_ids = body["prompt_token_ids"]
        self.usage = body.get("usage") or self.usage
        for choice in body.get("choices") or ():
            if choice.get("prompt_token_ids") is not None:  # where a completion has them
                self.prompt_token_ids = choice["prompt_token_ids"]
            self.choices.setdefault(choice.get("index", 0), CapturedChoice()).absorb(choice)


def _said(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a choice says: a chunk's delta, a whole message, or a completion's text."""
    said = choice.get("delta") or choice.get("message")
    return {"content": choice.get("text")} if said is None else said


def _logprobs(choice: Mapping[str, Any]) -> Sequence[Any]:
    """Return one entry a token: chat has a list of objects, a completion one of numbers."""
    told = choice.get("logprobs") or {}
    if "token_logprobs" in told:
        return told["token_logprobs"]  # type: ignore[no-any-return]
    return [entry.get("logprob") for entry in told.get("content") or ()]


def _measured(logprob: Any) -> float | None:
    if not isinstance(logprob, int | float) or logprob <= LOGPROB_FLOOR:
        return None
    return float(logprob)
