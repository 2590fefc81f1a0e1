"""The client's HTTP against a server that says, byte for byte, what a test wants."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent import http_answer, upstream
from agent.http_answer import BrokenAnswerError, ClosedError
from agent.upstream import ConnectError, Upstream

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
WITHOUT_LENGTH = b"HTTP/1.1 200 OK\r\n\r\nhello"


class Server:
    """Sends each connection's requests the same pieces, and closes when told."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = [PLAIN]
        self.closes = False
        self.num_connections = 0
        self.requests: list[bytes] = []
        self.lost = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.lost.set()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        self.requests.append(head + await reader.readexactly(int(length or 0)))
        for piece in self.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return not self.closes


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with await asyncio.start_server(found, "127.0.0.1", 0) as listening:
        found.port = listening.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        yield found


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Upstream]:
    found = Upstream(f"http://127.0.0.1:{server.port}", {"Authorization": "Bearer k"})  # type: ignore[attr-defined]
    yield found
    found.close()


async def body(client: Upstream, path: str = "/x", sent: bytes | None = None) -> bytes:
    answer = await client.send("GET" if sent is None else "POST", path, sent)
    try:
        return await answer.read()
    finally:
        answer.release()


@pytest.mark.parametrize("raw", [PLAIN, CHUNKED])
async def test_connections_are_kept(client, server, raw):
    server.pieces = [raw]
    assert [await body(client) for _ in range(3)] == [b"hello"] * 3
    assert server.num_connections == 1


async def test_a_request_says_what_it_holds(client, server):
    await body(client, "/v1/chat", b'{"a":1}')
    head, _, sent = server.requests[0].partition(b"\r\n\r\n")
    lines = head.decode().splitlines()
    assert lines[0] == "POST /v1/chat HTTP/1.1"
    assert {"Authorization: Bearer k", "Content-Length: 7"} < set(lines)
    assert any(line.startswith("Host: 127.0.0.1:") for line in lines)
    assert sent == b'{"a":1}'


async def test_a_path_in_the_url_precedes_others(server):
    client = Upstream(f"http://127.0.0.1:{server.port}/engine/")
    await body(client, "/health")
    client.close()
    assert server.requests[0].startswith(b"GET /engine/health ")


@pytest.mark.parametrize("raw", [CLOSING, WITHOUT_LENGTH])
async def test_an_answer_that_ends_with_its_connection_is_whole(client, server, raw):
    server.pieces, server.closes = [raw], True
    assert [await body(client) for _ in range(2)] == [b"hello"] * 2
    assert server.num_connections == 2


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(raw=st.sampled_from([PLAIN, CHUNKED]), data=st.data())
def test_it_does_not_matter_how_the_network_cuts_an_answer(raw, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]

    async def ask() -> bytes:
        server = Server()
        server.pieces = pieces
        async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
            client = Upstream(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            try:
                return await body(client)
            finally:
                client.close()

    assert asyncio.run(ask()) == b"hello"


@pytest.mark.parametrize("cut", [len(PLAIN) - 1, PLAIN.index(b"hello")])
async def test_an_answer_that_is_cut_off_is_broken(client, server, cut):
    server.pieces, server.closes = [PLAIN[:cut]], True
    with pytest.raises(BrokenAnswerError, match="closed"):
        await body(client)


async def test_a_server_that_says_nothing_has_closed_the_connection(client, server):
    server.pieces, server.closes = [], True
    with pytest.raises(ClosedError):
        await body(client)


async def test_what_is_no_http_is_said(client, server):
    server.pieces, server.closes = [b"SSH-2.0-OpenSSH\r\n\r\n"], True
    with pytest.raises(BrokenAnswerError, match="no HTTP"):
        await body(client)


async def test_nobody_there_is_said():
    with pytest.raises(ConnectError):
        await body(Upstream("http://127.0.0.1:1"))


async def test_letting_go_of_an_answer_under_way_closes_its_connection(client, server):
    server.pieces = [CHUNKED[:-5]]  # it goes on
    answer = await client.send("GET", "/x")
    assert await anext(answer.chunks()) == b"hello"
    answer.release()
    await asyncio.wait_for(server.lost.wait(), 5)


async def test_a_request_that_is_given_up_closes_its_connection(client, server):
    server.pieces = []
    sending = asyncio.ensure_future(client.send("GET", "/x"))
    while not server.requests:
        await asyncio.sleep(0.001)
    sending.cancel()
    await asyncio.wait_for(server.lost.wait(), 5)


async def test_closing_breaks_off_what_is_under_way(client, server):
    server.pieces = [PLAIN[:-1]]
    answer = await client.send("GET", "/x")
    reading = asyncio.ensure_future(answer.read())
    await asyncio.sleep(0)
    client.close()
    with pytest.raises(BrokenAnswerError):
        await reading


async def test_an_idle_connection_is_not_used_when_the_server_may_be_closing_it(
    client, server, monkeypatch
):
    monkeypatch.setattr(upstream, "KEEP_IDLE_S", 0.0)
    assert [await body(client) for _ in range(2)] == [b"hello"] * 2
    assert server.num_connections == 2


async def test_a_server_waits_for_a_slow_reader(client, server, monkeypatch):
    monkeypatch.setattr(http_answer, "MAX_UNREAD_BYTES", 1_000)
    size = 20_000_000
    server.pieces = [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, b"x" * size]
    answer = await client.send("GET", "/x")
    await asyncio.sleep(0.05)
    assert answer._num_unread < size // 2
    assert len(await answer.read()) == size
    answer.release()


async def test_an_answer_that_only_announces_another_is_none(client, server):
    server.pieces = [b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", PLAIN]
    assert await body(client) == b"hello"
