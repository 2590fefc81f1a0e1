import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from agent.event_stream import EventStream, WhileConnected, event, unless_gone


class Client:
    """An ASGI client that can leave; keeps what it was sent."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.sent: list[dict] = []
        self.readable = asyncio.Event()
        self.readable.set()

    async def receive(self) -> dict:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict) -> None:
        await self.readable.wait()
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


class Ended:
    """Counts how a stream ended."""

    def __init__(self) -> None:
        self.gone = 0
        self.released = 0

    async def on_gone(self) -> None:
        assert not self.released, "what the stream holds must last until its record is kept"
        self.gone += 1

    def stream(self, events: AsyncIterator[bytes]) -> EventStream:
        release = AsyncExitStack()
        release.callback(lambda: setattr(self, "released", self.released + 1))
        return EventStream(events, {"x-a": "b"}, on_gone=self.on_gone, release=release)


async def numbers(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        await asyncio.sleep(0)
        yield event({"n": number})


async def one_and_never_more() -> AsyncIterator[bytes]:
    yield event({"n": 0})
    await asyncio.Event().wait()


async def test_every_event_arrives_and_the_stream_is_released():
    client, ended = Client(), Ended()
    await ended.stream(numbers(3))({}, client.receive, client.send)
    assert client.body == b'data: {"n":0}\n\ndata: {"n":1}\n\ndata: {"n":2}\n\n'
    assert client.sent[-1] == {"type": "http.response.body", "body": b""}
    assert (ended.gone, ended.released) == (0, 1)


async def test_a_client_that_leaves_ends_the_stream_at_once():
    client, ended = Client(), Ended()
    asyncio.get_running_loop().call_later(0.02, client.left.set)
    async with asyncio.timeout(1):
        await ended.stream(one_and_never_more())({}, client.receive, client.send)
    assert (ended.gone, ended.released) == (1, 1)
    assert client.body == b'data: {"n":0}\n\n'


async def test_a_stream_that_the_service_stops_is_kept_and_stays_cancelled():
    client, ended = Client(), Ended()
    task = asyncio.create_task(ended.stream(one_and_never_more())({}, client.receive, client.send))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (ended.gone, ended.released) == (1, 1)


async def test_a_failure_of_the_events_is_raised_and_releases():
    async def broken() -> AsyncIterator[bytes]:
        yield event({})
        raise ValueError("a mistake in the program")

    client, ended = Client(), Ended()
    with pytest.raises(ValueError, match="mistake"):
        await ended.stream(broken())({}, client.receive, client.send)
    assert (ended.gone, ended.released) == (0, 1)


async def test_a_slow_reader_holds_the_events_back():
    produced = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal produced
        async for one in numbers(1_000):
            produced += 1
            yield one

    client, ended = Client(), Ended()
    client.readable.clear()
    task = asyncio.create_task(ended.stream(counted())({}, client.receive, client.send))
    await asyncio.sleep(0.02)
    assert produced == 0  # not even the head could be sent
    client.readable.set()
    await task
    assert produced == 1_000


async def test_an_answer_comes_while_the_client_waits():
    client = Client()
    assert await unless_gone(client.receive, asyncio.sleep(0.01, "answer")) == "answer"


async def test_an_answer_is_dropped_when_the_client_leaves():
    client, cancelled = Client(), False

    async def answer() -> str:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise
        return "never"

    asyncio.get_running_loop().call_later(0.02, client.left.set)
    assert await unless_gone(client.receive, answer()) is None
    assert cancelled


async def test_a_client_that_leaves_at_the_last_moment_cancels_nothing_after_the_block():
    client = Client()
    client.left.set()
    async with WhileConnected(client.receive):
        pass  # it ends before the watch has run
    await asyncio.sleep(0.01)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_cancellation_from_outside_is_not_mistaken_for_the_clients():
    client = Client()
    task = asyncio.create_task(unless_gone(client.receive, asyncio.sleep(10)))
    await asyncio.sleep(0.01)
    client.left.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
