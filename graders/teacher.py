"""What keeps the chat model behind a judge from doing harm.

A question ends at its deadline; what is likely to pass is asked again after a pause that grows; a
model that keeps failing is left alone for a while; calls and tokens are bounded by the hour. It
does not know what is asked, or which program answers.
"""

import asyncio
import logging
import time
from dataclasses import dataclass

from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from graders import metrics
from graders.allowance import Allowance, Breaker
from graders.chat_model import (
    ChatModel,
    ChatRequest,
    Failure,
    OverloadedTeacherError,
    Reply,
    TeacherError,
)

log = logging.getLogger(__name__)
CHARACTERS_A_TOKEN = 3
"""By which tokens are counted against the allowance where an endpoint does not report them."""


@dataclass(slots=True)
class Tally:
    """What asking has cost since the service started."""

    num_calls: int = 0  # attempts, those that failed included
    num_failed: int = 0
    num_tokens: int = 0  # as reported; of other calls nothing is known
    num_calls_without_tokens: int = 0
    seconds: float = 0.0


class Teacher:
    """A chat model with a deadline, retries, rest after failures, and an allowance.

    Args:
        model: what answers.
        deadline_s: for one question, retries included.
        max_attempts: of one question.
        max_parallel: questions that are under way at once.
        allowance: calls and tokens an hour.
        breaker: rest after failures.
        first_pause_s: about how long to wait before the second attempt.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        deadline_s: float,
        max_attempts: int = 3,
        max_parallel: int = 4,
        allowance: Allowance | None = None,
        breaker: Breaker | None = None,
        first_pause_s: float = 0.5,
    ) -> None:
        self.name = model.name
        self.tally = Tally()
        self._model = model
        self._deadline_s = deadline_s
        self._places = asyncio.Semaphore(max_parallel)
        self._allowance = allowance or Allowance()
        self._breaker = breaker or Breaker()
        self._max_attempts = max_attempts
        self._first_pause_s = first_pause_s

    def pause(self) -> tuple[float, Failure] | None:
        """Return for how many seconds nothing can be asked, and why; None: ask."""
        if (rest_s := self._breaker.seconds_left()) > 0:
            return rest_s, Failure.RESTING
        if (rest_s := self._allowance.seconds_left()) > 0:
            return rest_s, Failure.SPENT
        return None

    async def complete(self, request: ChatRequest) -> Reply:
        """Answer within the deadline; waiting for a place does not count.

        Raises:
            TeacherError: there is no answer.
        """
        async with self._places:
            if (pause := self.pause()) is not None:
                raise TeacherError(pause[1])
            try:
                async with asyncio.timeout(self._deadline_s):
                    reply = await self._with_retries(request)
            except TimeoutError as error:
                self._breaker.failed()
                raise TeacherError(Failure.TIMEOUT, f"{self._deadline_s:g} s") from error
            except TeacherError as error:
                if error.failure.may_pass:
                    self._breaker.failed()
                raise
            self._breaker.succeeded()
            return reply

    async def _with_retries(self, request: ChatRequest) -> Reply:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(OverloadedTeacherError),
            stop=stop_after_attempt(self._max_attempts),
            wait=wait_random_exponential(multiplier=self._first_pause_s, max=30),
            reraise=True,
        )
        reply: Reply = await retrying(self._once, request)
        return reply

    async def _once(self, request: ChatRequest) -> Reply:
        began, status = time.monotonic(), "failed"
        self._allowance.spend_call()
        try:
            reply = await self._model.complete(request)
            status = "answered"
            self._count_tokens(request, reply)
            return reply
        except TeacherError as error:
            log.warning("the judge %s gave no answer: %s", self.name, error.message)
            raise
        finally:
            took_s = time.monotonic() - began
            self.tally.num_calls += 1
            self.tally.num_failed += status == "failed"
            self.tally.seconds += took_s
            metrics.CALLS.labels(status).inc()
            metrics.CALL_SECONDS.observe(took_s)

    def _count_tokens(self, request: ChatRequest, reply: Reply) -> None:
        if reply.num_tokens is None:
            self.tally.num_calls_without_tokens += 1
            texts = [str(message.get("content")) for message in request.messages]
            num_characters = sum(map(len, [*texts, reply.text]))
            self._allowance.spend_tokens(num_characters // CHARACTERS_A_TOKEN)
            return
        self.tally.num_tokens += reply.num_tokens
        self._allowance.spend_tokens(reply.num_tokens)
        metrics.TOKENS.inc(reply.num_tokens)
