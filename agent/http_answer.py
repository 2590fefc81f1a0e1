"""One HTTP/1.1 connection to a server, and one answer as it arrives on it.

httptools parses. It does not know where connections come from or what is asked.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httptools

MAX_UNREAD_BYTES = 2**18
"""Of an answer that is read slower than it arrives; then the server has to wait."""
NO_BODY = {204, 304}


class ClosedError(OSError):
    """The server closed the connection before it answered."""


class BrokenAnswerError(OSError):
    """The answer ended before it was complete, or is no HTTP."""


class Answer:
    """One answer as it arrives.

    Args:
        connection: that it arrives on.
        put_back: takes the connection when all has been read.

    Attributes:
        status: the HTTP status; 0 before it is known.
    """

    def __init__(self, connection: "Connection", put_back: "Callable[[Connection], None]") -> None:
        self.status = 0
        self._connection = connection
        self._put_back = put_back
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
            self._put_back(self._connection)
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


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, opened: "set[Connection]") -> None:
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
