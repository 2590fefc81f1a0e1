"""HTTP/1.1 to one server over kept connections: a request, then its answer as it arrives.

What an answer through the gateway costs is mostly HTTP: a general client takes 75 us of a core for
each request and as much again for a few streamed chunks; this one, over httptools (the parser that
the service's own server uses), a third of that. It does no redirects, cookies, compression or
proxies. It does not know what is asked or answered.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

CONNECT_TIMEOUT_S = 5.0
KEEP_IDLE_S = 3.0
"""vLLM closes idle connections after 5 s; dropping them earlier avoids sending a request into a
closing one."""
MAX_UNREAD_BYTES = 2**18
"""Of an answer that is read slower than it arrives; then the server has to wait."""
NO_BODY = {204, 304}


class ConnectError(OSError):
    """No connection could be made."""


class ClosedError(OSError):
    """The server closed the connection before it answered."""


class BrokenAnswerError(OSError):
    """The answer ended before it was complete, or is no HTTP."""


class Upstream:
    """One server, by URL; it belongs to the event loop of its first request.

    There is no limit on connections: the server queues, not the client.
    """

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        """Connect to nothing yet.

        Args:
            base_url: ``http://127.0.0.1:8531``, or https; a path in it precedes all others.
            headers: sent with every request.
        """
        url = urlsplit(base_url)
        self._host = url.hostname or ""
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._port = url.port or (80 if self._tls is None else 443)
        self._prefix = url.path.rstrip("/")
        lines = {"Host": url.netloc.rpartition("@")[2], **(headers or {})}
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._idle: deque[tuple[float, _Connection]] = deque()
        self._open: set[_Connection] = set()

    async def send(self, method: str, path: str, body: bytes | None = None) -> "Answer":
        """Send a request; return its answer once it begins.

        Args:
            method: ``GET`` or ``POST``.
            path: with its leading slash.
            body: JSON.

        Raises:
            ConnectError, ClosedError, BrokenAnswerError: as they say.
        """
        connection = self._take() or await self._connect()
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        kind = "" if body is None else "Content-Type: application/json\r\n"
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._lines}{kind}{length}\r\n"
        answer = Answer(self, connection)
        connection.send(head.encode("latin-1") + (body or b""), answer)
        try:
            await answer.begun()
        except BaseException:
            connection.abort()
            raise
        return answer

    def put_back(self, connection: "_Connection") -> None:
        """Keep a connection whose answer has been read for the next request."""
        self._idle.append((time.monotonic(), connection))

    def close(self) -> None:
        """Close every connection; answers under way break off."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def _take(self) -> "_Connection | None":
        """Return an idle connection, the newest, that may be sent into."""
        oldest_at = time.monotonic() - KEEP_IDLE_S
        while self._idle and self._idle[0][0] < oldest_at:
            self._idle.popleft()[1].abort()
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._open), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise ConnectError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectError(str(error)) from error
        return connection


class Answer:
    """One answer as it arrives.

    Attributes:
        status: the HTTP status.
    """

    def __init__(self, upstream: Upstream, connection: "_Connection") -> None:
        self.status = 0
        self._upstream = upstream
        self._connection = connection
        self._unread: list[bytes] = []
        self._num_unread = 0
        self._is_complete = False
        self._failure: OSError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def begun(self) -> None:
        """Wait for the status."""
        while not self.status:
            await self._more()

    async def read(self) -> bytes:
        """Return the body, or what is left of it.

        Raises:
            BrokenAnswerError: it ended too early.
        """
        parts = [chunk async for chunk in self.chunks()]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body in parts of whatever size it arrives in.

        Raises:
            BrokenAnswerError: it ended too early.
        """
        while True:
            if self._unread:
                part = self._unread[0] if len(self._unread) == 1 else b"".join(self._unread)
                self._unread.clear()
                self._num_unread = 0
                self._connection.resume()
                yield part
            elif self._is_complete:
                return
            else:
                await self._more()

    def release(self) -> None:
        """Let go: a connection whose answer is not complete is closed, so that the server stops."""
        if self._is_complete and self._connection.is_open:
            self._upstream.put_back(self._connection)
        else:
            self._connection.abort()

    async def _more(self) -> None:
        """Wait until something has arrived."""
        if self._failure is not None:
            raise self._failure
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def began(self, status: int) -> None:
        """Take the status; the connection calls this and what follows."""
        self.status = status
        self._wake()

    def arrived(self, part: bytes) -> int:
        """Take a part of the body; return how many bytes nobody has read yet."""
        self._unread.append(part)
        self._num_unread += len(part)
        self._wake()
        return self._num_unread

    def completed(self) -> None:
        """Take note that all is here."""
        self._is_complete = True
        self._wake()

    def failed(self, failure: OSError) -> None:
        """Take note that no more will come."""
        if not self._is_complete:
            self._failure = failure
            self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, opened: "set[_Connection]") -> None:
        self._opened = opened  # all that are open
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._answer: Answer | None = None
        self._has_length = False  # the answer says where it ends; else it ends with the connection
        self._is_paused = False

    @property
    def is_open(self) -> bool:
        """Whether another request may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, answer: Answer) -> None:
        """Send a request whose answer is told."""
        self._answer = answer
        self._has_length = False
        self._parser = httptools.HttpResponseParser(self)
        if self._transport is None:
            answer.failed(ClosedError("the connection is closed"))
        else:
            self._transport.write(request)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """Let the server go on, if it had to wait."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self._answer is None:  # nothing was asked
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._answer.failed(BrokenAnswerError(f"it is no HTTP: {error}"))
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell who waits."""
        self._transport = None
        self._opened.discard(self)
        answer, self._answer = self._answer, None
        if answer is None:
            return
        if not answer.status:
            answer.failed(ClosedError(str(error or "before it answered")))
        elif self._has_length or error is not None:
            answer.failed(BrokenAnswerError(str(error or "the connection was closed")))
        else:
            answer.completed()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the answer says where it ends."""
        self._has_length |= name.lower() in {b"content-length", b"transfer-encoding"}

    def on_headers_complete(self) -> None:
        """Tell the status; one that only announces another is no answer."""
        status = self._parser.get_status_code()
        if self._answer is not None and status >= 200:
            self._has_length |= status in NO_BODY
            self._answer.began(status)

    def on_body(self, part: bytes) -> None:
        """Hand on a part."""
        if self._answer is None or self._answer.arrived(part) <= MAX_UNREAD_BYTES:
            return
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """End the answer."""
        answer = self._answer
        if answer is None or not answer.status:
            return
        self._answer = None
        if not self._parser.should_keep_alive():
            self.abort()
        answer.completed()
