"""A call: one completion, token for token, and how it hangs in the tree of its episode."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]
"""One chat message as it stands on the wire: ``{"role": "user", "content": "6 * 7 = ?"}``."""


def message_text(message: Message) -> str:
    """Return a message's text; parts of a list content are joined by newlines, as vLLM does."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return ""


class CallStatus(StrEnum):
    """How a call ended."""

    OK = "ok"
    CANCELLED = "cancelled"  # the client hung up; the tokens up to then are kept
    ERROR = "error"


class Edge(StrEnum):
    """How a call hangs below its parent in the episode's tree, or beside what was before."""

    CONTINUATION = "continuation"  # its messages begin with the parent's messages and answer
    RERENDERED = "rerendered"  # a continuation whose system prompt, or answer, was written anew
    FORK = "fork"  # shares a beginning with the parent's conversation, then goes another way
    RETRY = "retry"  # asks what its sibling asked; hangs where the sibling hangs
    COMPACTION = "compaction"  # the parent's history was shortened, or replaced by a summary
    SIDE_CALL = "side_call"  # asks for a title, a summary, … and quotes the parent's conversation
    SUB_AGENT = "sub_agent"  # a conversation of its own that the parent's answer started
    SESSION = "session"  # nothing but the session's name joins it to the episode


GOES_ON = frozenset({Edge.CONTINUATION, Edge.RERENDERED, Edge.FORK, Edge.COMPACTION})
"""The edges by which a conversation goes on below a call. A retry stands beside one of them, or
beside a call that is no part of the conversation.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One completion, token for token.

    Example:
        ``Call(id="chatcmpl-8c1", episode_id="ep_0193-5c", adapter="denizen-000007",
        request={"messages": [{"role": "user", "content": "3 * 4 = ?"}], "max_tokens": 8},
        message={"role": "assistant", "content": "12"}, prompt_token_ids=(1, 9, 8),
        completion_token_ids=(33, 2), sampler_logprobs=(-0.41, -0.02), finish_reason="stop",
        status=CallStatus.OK, latency_ms=81.5, …)``
    """

    id: str
    episode_id: str
    created_at: datetime
    adapter: str  # "base", or the adapter version that sampled: "denizen-000007"
    request: Mapping[str, Any]  # the client's body, without ``metadata``
    message: Message | None  # the assistant's message as assembled; None when nothing came
    prompt_token_ids: Sequence[int] | None  # as the engine reports them; None: it did not
    completion_token_ids: Sequence[int] | None  # [L], the final end-of-sequence token included
    sampler_logprobs: Sequence[float | None] | None  # [L]; None where unknown, never 0.0 instead
    finish_reason: str | None
    status: CallStatus
    latency_ms: float
    parent_id: str | None = None  # the call that this one hangs below
    edge: Edge | None = None  # why it belongs to its episode; None: it began it
    session: str | None = None
    usage: Mapping[str, Any] | None = None
    error: str | None = None
    learn: bool = True  # False: the caller sent ``x-denizen-learn: off``
    withheld: str | None = None  # why it is kept from learning whatever the caller says
    recalled: Mapping[str, Any] | None = None  # what memory put into the prompt, and from where

    @property
    def text_only_reason(self) -> str | None:
        """Say what the engine left out of a complete answer that learning needs; None: nothing."""
        if self.status is not CallStatus.OK or self.withheld is not None:
            return None
        if not self.completion_token_ids or self.prompt_token_ids is None:
            return "no_token_ids"
        if self.sampler_logprobs is None or len(self.sampler_logprobs) != len(
            self.completion_token_ids
        ):
            return "no_logprobs"
        return None

    @property
    def not_learnable_reason(self) -> str | None:
        """Say why no training row can be made of this call; None when one can."""
        if not self.learn:
            return "learning_off"
        if self.withheld is not None:
            return self.withheld
        if self.status is not CallStatus.OK:
            return self.status.value
        return self.text_only_reason
