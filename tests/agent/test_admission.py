import asyncio
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from agent.admission import AdmissionMiddleware, InFlight


class Answering:
    """An application whose answers wait until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.begun = asyncio.Semaphore(0)  # released for each request that waits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            self.begun.release()
            await self.let_go.wait()
        if scope["path"].startswith("/broken"):
            raise ValueError("a mistake in the program")
        await PlainTextResponse("answer")(scope, receive, send)


def client_of(app: Answering, max_in_flight: int) -> httpx.AsyncClient:
    admission: Any = AdmissionMiddleware(app, in_flight=InFlight(max_in_flight))
    return httpx.AsyncClient(transport=httpx.ASGITransport(admission), base_url="http://denizen")


CHAT = "/v1/chat/completions"


async def test_one_more_than_the_bound_is_told_to_come_back_and_does_not_wait():
    app = Answering()
    async with client_of(app, 2) as client, asyncio.timeout(5):
        waiting = [asyncio.create_task(client.post(CHAT)) for _ in range(2)]
        for _ in waiting:
            await app.begun.acquire()
        refused = await client.post(CHAT)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "overloaded"
        assert "server.max_in_flight" in refused.json()["error"]["message"]
        app.let_go.set()
        assert [(await one).status_code for one in waiting] == [200, 200]
        assert (await client.post(CHAT)).status_code == 200


@pytest.mark.parametrize(
    "path", ["/s/one/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions"]
)
async def test_every_way_to_ask_for_an_answer_counts(path):
    app = Answering()
    async with client_of(app, 1) as client, asyncio.timeout(5):
        waiting = asyncio.create_task(client.post(CHAT))
        await app.begun.acquire()
        assert (await client.post(path)).status_code == 503
        app.let_go.set()
        await waiting


async def test_health_is_answered_when_no_more_requests_are():
    app = Answering()
    async with client_of(app, 1) as client, asyncio.timeout(5):
        waiting = asyncio.create_task(client.post(CHAT))
        await app.begun.acquire()
        assert (await client.get("/health")).status_code == 200
        app.let_go.set()
        await waiting


async def test_a_request_that_fails_gives_its_place_back():
    app = Answering()
    app.let_go.set()
    async with client_of(app, 1) as client, asyncio.timeout(5):
        for _ in range(3):
            with pytest.raises(ValueError, match="mistake"):
                await client.post(f"/broken{CHAT}")
        assert (await client.post(CHAT)).status_code == 200


async def test_a_request_that_is_given_up_gives_its_place_back():
    app = Answering()
    async with client_of(app, 1) as client, asyncio.timeout(5):
        waiting = asyncio.create_task(client.post(CHAT))
        await app.begun.acquire()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        app.let_go.set()
        assert (await client.post(CHAT)).status_code == 200


def test_the_gateway_is_busy_while_a_request_runs_and_a_moment_longer(monkeypatch):
    now = 100.0
    monkeypatch.setattr("agent.admission.time.monotonic", lambda: now)
    in_flight = InFlight(1)
    assert not in_flight.is_busy
    in_flight.begin()
    now += 60
    assert in_flight.is_busy
    in_flight.end()
    assert in_flight.is_busy
    now += 1.1
    assert not in_flight.is_busy
