"""Asks a judge several times and keeps what can be read of it.

What is no verdict is asked for once more, with another ticket, and else left out and counted; it
never becomes a number. It does not know how votes are merged.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from graders import metrics
from graders.chat_model import ChatRequest, Failure, Reply, TeacherError
from graders.judge_prompt import Question
from graders.verdicts import Unread


class VotesConfig(BaseModel):
    """How a judge is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    votes: int = Field(default=3, ge=1, le=15)
    """How often a judge is asked about the same; odd, so that halves are rare."""
    temperature: float = Field(default=0.7, ge=0.0, le=2.0)
    """Of a judge's replies. Votes at 0 would be one vote, given several times."""
    max_tokens: int = Field(default=400, ge=32)
    """Of one reply: a reason of a few sentences, and the verdict."""


class ReadVerdict(Protocol):
    """A reply that was read."""

    @property
    def unread(self) -> Unread | None:
        """Why it is no verdict; None: it is one."""

    @property
    def explanation(self) -> str:
        """The judge's reason."""


V = TypeVar("V", bound=ReadVerdict)


class Asks(Protocol):
    """What questions are put to."""

    @property
    def name(self) -> str:
        """Name the model."""

    async def complete(self, request: ChatRequest) -> Reply:
        """Answer, or raise ``TeacherError``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vote(Generic[V]):
    """One vote: a verdict, or why there is none.

    Example:
        ``Vote(seed=1, verdict=ScoreVerdict(value=0.7, …))`` or
        ``Vote(seed=2, reason="cut_off")``
    """

    seed: int
    verdict: V | None = None
    reason: str | None = None
    failure: Failure | None = None  # set where no reply came


async def cast(
    teacher: Asks,
    config: VotesConfig,
    ask: Callable[[int], Question],
    read: Callable[[str, Question], V],
) -> list[Vote[V]]:
    """Return as many votes as the config asks for, in the order of their seeds from 0 on.

    Args:
        teacher: answers.
        config: how it is asked.
        ask: makes the question of a vote, by its number; each time with another ticket.
        read: reads a reply to a question.
    """

    async def one(number: int) -> Vote[V]:
        try:
            for attempt in (0, 1):
                vote = await _ask(teacher, config, ask(number), read, number, attempt)
                if vote.verdict is not None:
                    break
            return vote
        except TeacherError as error:
            return Vote(seed=number, reason=error.failure, failure=error.failure)

    return list(await asyncio.gather(*(one(number) for number in range(config.votes))))


async def _ask(
    teacher: Asks,
    config: VotesConfig,
    question: Question,
    read: Callable[[str, Question], V],
    number: int,
    attempt: int,
) -> Vote[V]:
    seed = number + attempt * config.votes  # the same seed again would give the same again
    reply = await teacher.complete(
        ChatRequest(
            messages=tuple(question.messages),
            schema=question.schema,
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            seed=seed,
        )
    )
    if reply.is_refusal:
        reason: Unread | None = Unread.REFUSED
    else:
        verdict = read(reply.text, question)
        reason = verdict.unread
    if reason is None:
        return Vote(seed=seed, verdict=verdict)
    metrics.UNREAD.labels(reason).inc()
    return Vote(seed=seed, reason=reason)


def readable(votes: Sequence[Vote[V]]) -> list[V]:
    """Return the verdicts among the votes."""
    return [vote.verdict for vote in votes if vote.verdict is not None]


def has_quorum(votes: Sequence[Vote[V]]) -> bool:
    """Say whether more than half of the votes can be read."""
    return 2 * len(readable(votes)) > len(votes)


def why_unread(votes: Sequence[Vote[V]]) -> str:
    """Return the reasons of the votes that cannot be read, the most frequent first."""
    reasons = [vote.reason for vote in votes if vote.reason is not None]
    return ", ".join(sorted(dict.fromkeys(reasons), key=lambda one: -reasons.count(one)))


def failure_of(votes: Sequence[Vote[V]]) -> Failure | None:
    """Return what kept a reply from coming, if that may pass; None: asking again is no use."""
    failures = [vote.failure for vote in votes if vote.failure is not None]
    return next((one for one in failures if one.may_pass), None)
