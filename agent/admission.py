"""How many requests are answered at once: one more is told to come back, and never waits.

A request is in flight from its arrival until its record is in the file and its last byte is out. So
one bound holds for everything that grows with it: conversations in memory, connections to the
engines, and records that wait for a slow disk. It does not know what a request asks.
"""

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from agent import metrics
from agent.dialects.errors import body_at
from memory.errors import UnavailableError
from memory.http import error_answer

RETRY_AFTER_S = 1
BUSY_FOR_S = 1.0  # after an answer: the next request is likely to come soon
ANSWERING = ("/chat/completions", "/completions", "/responses", "/messages")
"""Ends of the paths that have an engine compute."""


class OverloadedError(UnavailableError):
    """As many requests as may be are under way."""

    code = "overloaded"


class InFlight:
    """The requests under way."""

    def __init__(self, at_most: int) -> None:
        self.at_most = at_most
        self.num = 0
        self._ended_at = float("-inf")

    @property
    def is_full(self) -> bool:
        """Whether one more is too many."""
        return self.num >= self.at_most

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way, or was a moment ago; other work should wait then."""
        return self.num > 0 or time.monotonic() - self._ended_at < BUSY_FOR_S

    def begin(self) -> None:
        """Count one more."""
        self.num += 1
        metrics.IN_FLIGHT.set(self.num)

    def end(self) -> None:
        """Count one less."""
        self.num -= 1
        self._ended_at = time.monotonic()
        metrics.IN_FLIGHT.set(self.num)


class AdmissionMiddleware:
    """Refuses a request for an answer where one more is too many; its body stays unread.

    Everything else, health and metrics among it, passes.
    """

    def __init__(self, app: ASGIApp, *, in_flight: InFlight) -> None:
        self._app = app
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if not _wants_answer(scope):
            await self._app(scope, receive, send)
        elif self._in_flight.is_full:
            metrics.REJECTED.inc()
            refusal = self._refusal()
            told = body_at(scope["path"], refusal)
            await error_answer(refusal, told)(scope, receive, send)
        else:
            await self._counted(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._in_flight.begin()
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight.end()

    def _refusal(self) -> OverloadedError:
        return OverloadedError(
            f"{self._in_flight.at_most} requests are being answered, as many as may be "
            "(server.max_in_flight): ask again soon",
            retry_after_s=RETRY_AFTER_S,
        )


def _wants_answer(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    path: str = scope["path"]
    return path.endswith(ANSWERING)
