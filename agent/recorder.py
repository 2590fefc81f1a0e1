"""The record of exchanges: each finds its place, and is kept there, once.

It does not know how an answer comes to be; what cannot be kept breaks none.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from agent import metrics
from agent.exchange import Exchange
from agent.placement import Placement
from memory.errors import StoreError, UnavailableError
from memory.types import Call, CallStatus

log = logging.getLogger(__name__)
FAILURE_SHOWN_S = 30.0
"""How long one unwritten record makes the service "degraded": a balancer that then sends nothing
would otherwise never see it well again."""
SETTLED_S = 5.0
"""For the file to catch up with the answers, before a route shows it as it is."""
CLOSE_S = 5.0
"""For records that are being written when the service stops; what is safe is written at the next
start."""


class Recorder:
    """Keeps exchanges, and knows which of them are not in the file yet.

    Args:
        placement: finds the conversation of a request, and keeps the record there.
        on_recorded: called after each record, so that grading may begin.
    """

    def __init__(self, placement: Placement, on_recorded: Callable[[], None]) -> None:
        self._placement = placement
        self._on_recorded = on_recorded
        self._background: set[asyncio.Future[None]] = set()
        self._failure: str | None = None
        self._failed_at = 0.0

    @property
    def failure(self) -> str | None:
        """Why answers are not recorded, or were not a moment ago; None when all is well."""
        if (trouble := self._placement.trouble) is not None:
            return trouble
        is_recent = time.monotonic() - self._failed_at < FAILURE_SHOWN_S
        return self._failure if is_recent else None

    async def settled(self) -> None:
        """Wait until all that was answered before can be read in the record, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLED_S):
                await self._placement.settled()

    async def close(self) -> None:
        """Wait for records that are still being written, where they can be."""
        if self._background and self._placement.trouble is None:
            await asyncio.wait(self._background, timeout=CLOSE_S)

    async def find_place(self, exchange: Exchange) -> None:
        """Look for a request's place, after all that it may descend from can be found."""
        if not exchange.placing.is_done:
            if not exchange.placing.is_possible:
                await self._placement.settled()
            exchange.settle()

    def find_place_soon(self, exchange: Exchange) -> None:
        """Look for it while the engine computes, if it can be found; else when it is needed."""
        if exchange.placing.is_possible:
            exchange.settle()

    async def record(self, exchange: Exchange, status: CallStatus, error: str | None) -> None:
        """Keep the exchange, once; what cannot be kept is counted, and breaks no answer."""
        await self.find_place(exchange)
        if (safe := self.keep(exchange, status, error)) is not None:
            await safe

    def keep(
        self, exchange: Exchange, status: CallStatus, error: str | None
    ) -> "asyncio.Future[None] | None":
        """Keep the exchange, once.

        Returns:
            Done when it is safe, or cannot be kept; None where there is nothing to wait for. A
            client that leaves meanwhile does not take the record with it.
        """
        if exchange.is_closed:
            return None
        exchange.is_closed = True
        metrics.REQUESTS.labels(status).inc()
        if not exchange.options.record:
            return None
        calls, began = exchange.calls(status, error), time.perf_counter()
        kept = self._placement.keep(exchange.place, calls)
        self._background.add(kept.written)
        metrics.RECORDS_WAITING.inc()
        kept.written.add_done_callback(partial(self._on_written, calls, status, began))
        if kept.safe.done():
            return None
        told = asyncio.get_running_loop().create_future()
        kept.safe.add_done_callback(partial(_tell, told))
        return told

    def _on_written(
        self,
        calls: Sequence[Call],
        status: CallStatus,
        began: float,
        written: "asyncio.Future[None]",
    ) -> None:
        self._background.discard(written)
        metrics.RECORDS_WAITING.dec()
        metrics.RECORD_SECONDS.observe(time.perf_counter() - began)
        failure = asyncio.CancelledError() if written.cancelled() else written.exception()
        if failure is not None:
            metrics.RECORDS_DROPPED.inc(len(calls))
            self._failure, self._failed_at = str(failure) or repr(failure), time.monotonic()
            is_known = isinstance(failure, StoreError | UnavailableError)
            log.error(
                "call %s was answered but not recorded: %s",
                calls[0].id,
                self._failure,
                exc_info=None if is_known else failure,
            )
            return
        self._failure = None
        metrics.RECORDS.labels(status).inc(len(calls))
        for reason in (call.text_only_reason for call in calls):
            if reason is not None:
                metrics.RECORDS_TEXT_ONLY.labels(reason).inc()
        self._on_recorded()


def _tell(told: "asyncio.Future[None]", _: "asyncio.Future[None]") -> None:
    if not told.done():  # nobody waits any more
        told.set_result(None)
