"""A chat model as judges see it: what it is asked, what it answers, and why there is no answer.

It does not know what is asked, or how often one may ask.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from memory.errors import DenizenError

REFUSALS = frozenset({400, 413, 422})
"""The statuses that speak of the question itself; any other 4xx is a fault of the set-up."""


class Failure(StrEnum):
    """Why there is no reply."""

    TIMEOUT = "judge_timeout"
    UNAVAILABLE = "judge_unavailable"  # no connection, overload, or a fault of its own
    REFUSED = "judge_refused_request"  # too long, for example: asking again changes nothing
    RESTING = "judge_resting"  # it failed too often of late
    SPENT = "judge_budget_spent"

    @property
    def may_pass(self) -> bool:
        """Whether the same question may be answered later."""
        return self is not Failure.REFUSED


class TeacherError(DenizenError):
    """A question got no reply.

    Attributes:
        failure: why.
    """

    code = "judge_failed"

    def __init__(self, failure: Failure, detail: str = "") -> None:
        super().__init__(f"{failure}: {detail}" if detail else failure.value)
        self.failure = failure


class OverloadedTeacherError(TeacherError):
    """The model may well answer the same question in a moment."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(Failure.UNAVAILABLE, detail)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """What a chat model is asked.

    Example:
        ``ChatRequest(messages=({"role": "user", "content": "…"},), schema={"type": "object", …},
        max_tokens=400, temperature=0.7, seed=1)``
    """

    messages: tuple[Mapping[str, Any], ...]
    schema: Mapping[str, Any]  # of the reply, which is JSON
    max_tokens: int
    temperature: float
    seed: int

    def body(self) -> dict[str, Any]:
        """Return OpenAI's body, without a model."""
        form = {"name": "verdict", "schema": self.schema}
        return {
            "messages": [dict(message) for message in self.messages],
            "response_format": {"type": "json_schema", "json_schema": form},
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a chat model answered."""

    text: str
    is_refusal: bool = False  # it said, outside the text, that it will not answer
    num_tokens: int | None = None  # of prompt and completion; None: not reported


class ChatModel(Protocol):
    """Answers a question."""

    @property
    def name(self) -> str:
        """Name the model; another name is another judge, and trust in it is earned anew."""

    async def complete(self, request: ChatRequest) -> Reply:
        """Answer.

        Raises:
            TeacherError: there is no answer.
        """


ChatFn = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends OpenAI's body without a model, and returns OpenAI's answer."""


class EngineModel:
    """The base model in the engine that also answers: it never changes with what is learned.

    Args:
        chat: asks the engine for the base model.
        name: the base model with what tells it from another: ``denizen@base:9f3a12b4c5d6``.
    """

    def __init__(self, chat: ChatFn, *, name: str) -> None:
        self._chat = chat
        self.name = name

    async def complete(self, request: ChatRequest) -> Reply:
        """Answer."""
        try:
            return reply_of(await self._chat(request.body()))
        except DenizenError as error:
            if error.status in REFUSALS:
                raise TeacherError(Failure.REFUSED, error.message) from error
            raise OverloadedTeacherError(error.message) from error


def reply_of(answer: Mapping[str, Any]) -> Reply:
    """Read OpenAI's answer.

    Raises:
        OverloadedTeacherError: it has no choice.
    """
    try:
        choice = answer["choices"][0]
        message, usage = choice["message"], answer.get("usage") or {}
        text, total = message.get("content"), usage.get("total_tokens")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise OverloadedTeacherError("the answer has no choice") from error
    return Reply(
        text=text if isinstance(text, str) else "",
        is_refusal=bool(message.get("refusal")) or choice.get("finish_reason") == "content_filter",
        num_tokens=total if isinstance(total, int) else None,
    )
