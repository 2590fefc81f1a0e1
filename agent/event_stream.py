"""Server-sent events to one client, and noticing that the client has left.

It does not know what the events say, where they come from or what is recorded of them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
WATCH_AFTER_S = 0.25
"""How long an answer may take before its client is watched: most clients that leave do so because
they have waited, and a watch costs as much as parsing the request."""


def event(body: dict[str, Any], name: str | None = None) -> bytes:
    """Return one event as it stands on the wire; some dialects name theirs."""
    heading = b"" if name is None else b"event: " + name.encode() + b"\n"
    return heading + b"data: " + orjson.dumps(body) + b"\n\n"


class EventStream(Response):
    """An answer that is sent event by event until it ends or its client leaves.

    Args:
        events: whole events, as ``event`` makes them.
        headers: sent before the first of them.
        on_gone: called when the client left, or the service stops, before the events ended.
        release: what the answer holds; closed when it is over, however it ended.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: dict[str, str],
        *,
        on_gone: Callable[[], Awaitable[None]],
        release: AsyncExitStack,
    ) -> None:
        super().__init__(
            headers=headers | {"cache-control": "no-cache"}, media_type="text/event-stream"
        )
        del self.headers["content-length"]
        self._events = events
        self._on_gone = on_gone
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client leaves."""
        async with self._release:
            connected = WhileConnected(receive)
            try:
                async with connected:
                    await self._pump(send)
            except asyncio.CancelledError:  # the service stops
                await self._on_gone()
                raise
            if connected.has_left:
                await self._on_gone()

    async def _pump(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for one in self._events:
            await send({"type": "http.response.body", "body": one, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class WhileConnected:
    """Ends the block that it guards when the client leaves, as ``asyncio.timeout`` does in time.

    Example:
        ``async with WhileConnected(receive) as connected: await answer``, then
        ``connected.has_left`` says whether the block was cut short or its end came just in time.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.has_left = False
        self._is_over = False
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._num_cancels = task, task.cancelling()
        self._begin = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin_watch)
        return self

    def _begin_watch(self) -> None:
        self._watch = asyncio.create_task(_disconnected(self._receive))
        self._watch.add_done_callback(self._on_watched)

    def _on_watched(self, watch: "asyncio.Task[None]") -> None:
        if not (watch.cancelled() or self._is_over):
            self.has_left = True
            self._task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        self._is_over = True
        self._begin.cancel()
        if self._watch is not None:
            self._watch.cancel()
        is_ours = self.has_left and self._task.uncancel() <= self._num_cancels
        return is_ours and kind is asyncio.CancelledError


async def unless_gone(receive: Receive, answer: Awaitable[T]) -> T | None:
    """Await an answer; drop it and return None when the client leaves first."""
    async with WhileConnected(receive):
        return await answer
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
