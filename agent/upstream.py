"""HTTP/1.1 to one server over kept connections: a request, then its answer as it arrives.

What an answer through the gateway costs is mostly HTTP. A general client (aiohttp) took 110 us of a
core for a request and 27 for a chunk of a stream; this one, over the parser that the service's own
server uses, 34 and 21 (x86-64, 2026-11-30). It does no redirects, cookies, compression or proxies.
It does not know what is asked or answered.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Mapping
from urllib.parse import urlsplit

from agent.http_answer import Answer, Connection

CONNECT_TIMEOUT_S = 5.0
KEEP_IDLE_S = 3.0
"""vLLM closes idle connections after 5 s; dropping them earlier avoids sending a request into a
closing one."""


class ConnectError(OSError):
    """No connection could be made."""


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
        self._idle: deque[tuple[float, Connection]] = deque()
        self._open: set[Connection] = set()

    async def send(self, method: str, path: str, body: bytes | None = None) -> Answer:
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
        answer = Answer(connection, self._put_back)
        connection.send(head.encode("latin-1") + (body or b""), answer)
        try:
            await answer.begun()
        except BaseException:
            connection.abort()
            raise
        return answer

    def _put_back(self, connection: Connection) -> None:
        """Keep a connection whose answer has been read for the next request."""
        self._idle.append((time.monotonic(), connection))

    def close(self) -> None:
        """Close every connection; answers under way break off."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def _take(self) -> Connection | None:
        """Return an idle connection, the newest, that may be sent into."""
        oldest_at = time.monotonic() - KEEP_IDLE_S
        while self._idle and self._idle[0][0] < oldest_at:
            self._idle.popleft()[1].abort()
        while self._idle:
            connection = self._idle.pop()[1]
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._open), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:
            raise ConnectError(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except (OSError, ssl.SSLError) as error:
            raise ConnectError(str(error)) from error
        return connection
