"""Loads an OpenAI-compatible server over kept connections and measures what it answers.

Latency is measured open-loop: requests are due at fixed instants, whatever became of the ones
before, and each is timed from when it was due, so that a server that stalls cannot hide the wait of
those it kept from being sent. Throughput is measured closed-loop. The client is raw asyncio: it
must cost little beside what it measures.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import orjson

TIMEOUT_S = 60.0
FIRST_EVENT = b"data:"


@dataclass(slots=True)
class Reply:
    """One answer."""

    status: int
    body: bytes  # as it came, a chunked body with its framing
    first_event_at: float | None  # of a stream, on the clock of ``time.perf_counter``
    done_at: float


@dataclass(slots=True)
class Connection(asyncio.Protocol):
    """One kept connection, one request at a time."""

    transport: asyncio.Transport | None = None
    received: bytearray = field(default_factory=bytearray)
    first_event_at: float | None = None
    reply: "asyncio.Future[Reply] | None" = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, request: bytes) -> "asyncio.Future[Reply]":
        """Send one request; the future is its answer."""
        assert self.transport is not None
        self.received.clear()
        self.first_event_at = None
        self.reply = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.reply

    def data_received(self, data: bytes) -> None:
        """Note the first event, and the end."""
        self.received += data
        if self.first_event_at is None and FIRST_EVENT in self.received:
            self.first_event_at = time.perf_counter()
        head_end = self.received.find(b"\r\n\r\n")
        if head_end < 0 or self.reply is None or self.reply.done():
            return
        if self._is_complete(head_end):
            status = int(self.received[9:12])
            body = bytes(self.received[head_end + 4 :])
            self.reply.set_result(Reply(status, body, self.first_event_at, time.perf_counter()))

    def _is_complete(self, head_end: int) -> bool:
        head = bytes(self.received[:head_end]).lower()
        _, found, rest = head.partition(b"content-length:")
        if found:
            return len(self.received) >= head_end + 4 + int(rest.partition(b"\r\n")[0])
        return len(self.received) > head_end + 4 and self.received.endswith(b"0\r\n\r\n")

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the answer that is awaited."""
        self.transport = None
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(error or ConnectionError("the server closed the connection"))


class Client:
    """Connections to one server, taken up again when they are free."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        assert address.hostname is not None and address.port is not None
        self._host, self._port = address.hostname, address.port
        self._free: list[Connection] = []
        self._numbers = itertools.count(1)

    async def ask(self, *, num_tokens: int = 16, stream: bool = False) -> Reply:
        """Ask a question that nobody asked before."""
        connection = self._take() or await self._connect()
        async with asyncio.timeout(TIMEOUT_S):
            reply = await connection.send(self._request(num_tokens, stream))
        self._free.append(connection)
        return reply

    def _take(self) -> Connection | None:
        """Return a free connection that the server has not closed meanwhile."""
        while self._free:
            connection = self._free.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def warm(self, num_connections: int) -> None:
        """Open connections, which a gateway in use has already."""
        self._free += [await self._connect() for _ in range(num_connections)]

    def close(self) -> None:
        """Close the connections that are free."""
        for connection in self._free:
            if connection.transport is not None:
                connection.transport.close()
        self._free.clear()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, self._host, self._port)
        return connection

    def _request(self, num_tokens: int, stream: bool) -> bytes:
        text = f"Question {next(self._numbers)}: what is to be done when the backup job has failed?"
        body = orjson.dumps(
            {
                "model": "denizen",
                "messages": [
                    {"role": "system", "content": "You help people who run servers. Be brief."},
                    {"role": "user", "content": text},
                ],
                "max_tokens": num_tokens,
                "temperature": 0.7,
                "stream": stream,
            }
        )
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n"
            b"authorization: Bearer sk-bench\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n%b"
        ) % (len(body), body)


@dataclass(slots=True)
class Outcome:
    """What became of the requests of one measurement."""

    seconds: list[float] = field(default_factory=list)  # of each good answer
    num_ok: int = 0
    num_refused: int = 0  # told to come back later: 429 or 503
    num_failed: int = 0

    def count(self, reply: Reply) -> bool:
        """Count an answer; True for a good one."""
        is_whole = reply.first_event_at is None or b"data: [DONE]" in reply.body
        is_good = reply.status == 200 and is_whole and b'"error"' not in reply.body
        self.num_ok += is_good
        self.num_refused += reply.status in {429, 503}
        self.num_failed += not is_good and reply.status not in {429, 503}
        return is_good


async def open_loop(
    ask: Callable[[], Awaitable[Reply]],
    *,
    rate: float,
    seconds: float,
    warm_up_s: float,
    moment: Callable[[Reply], float | None] = lambda reply: reply.done_at,
) -> Outcome:
    """Send ``rate`` requests a second; time each from the instant it was due.

    Args:
        ask: sends one request.
        rate: requests a second.
        seconds: of sending, the warm-up included.
        warm_up_s: answers to requests due before this are counted but not timed.
        moment: what is timed of an answer.
    """
    outcome = Outcome()
    start = time.perf_counter()

    async def one(due: float) -> None:
        try:
            reply = await ask()
        except (OSError, TimeoutError):
            outcome.num_failed += 1
            return
        at = moment(reply)
        if outcome.count(reply) and at is not None and due >= start + warm_up_s:
            outcome.seconds.append(at - due)

    async with asyncio.TaskGroup() as group:
        for number in range(round(rate * seconds)):
            due = start + number / rate
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(due))
    return outcome


async def closed_loop(
    ask: Callable[[], Awaitable[Reply]], *, num_clients: int, seconds: float
) -> tuple[Outcome, float]:
    """Let each client ask again as soon as it is answered; return also the answers a second."""
    outcome = Outcome()
    start = time.perf_counter()

    async def one() -> None:
        while time.perf_counter() - start < seconds:
            try:
                outcome.count(await ask())
            except (OSError, TimeoutError):
                outcome.num_failed += 1

    await asyncio.gather(*(one() for _ in range(num_clients)))
    return outcome, outcome.num_ok / (time.perf_counter() - start)


def quantile(values: list[float], share: float) -> float | None:
    """Return the value that ``share`` of all do not exceed; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
