"""Versions change under load, through the whole service: nobody notices but by the header."""

import asyncio
import itertools
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask
from tests.service.versions import make_versions
from tests.tiny_model import VOCAB_SIZE, save_tiny_model

NUM_STREAMS = 64
NUM_MOVES = 1_000
NUM_VERSIONS = 6
MOVES_PER_VERSION = 60
PLACES = 4


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def engine(tiny_model) -> Iterator[FakeEngine]:
    root = str(tiny_model)
    with FakeEngine(vocab_size=VOCAB_SIZE, root=root, max_loras=PLACES) as engine:
        yield engine


@dataclass(slots=True)
class Chats:
    """Streams of many clients, each with a text of its own, and what came of them."""

    http: aiohttp.ClientSession
    answered_by: dict[str, str] = field(default_factory=dict)  # text -> version in the header
    call_ids: dict[str, str] = field(default_factory=dict)  # text -> call id in the header
    failures: list[str] = field(default_factory=list)
    is_over: bool = False

    async def talk(self, client: int) -> None:
        for number in itertools.count():
            if self.is_over:
                return
            text = f"text-{client}-{number}"
            async with self.http.post("/v1/chat/completions", json=ask(text, stream=True)) as sent:
                content = await sent.text()
            version = sent.headers.get("x-denizen-adapter", "none")
            said = "Well," if version == "base" else f"{version}:"
            whole = content.endswith("data: [DONE]\n\n") and "error" not in content
            if sent.status != 200 or not whole or said not in content:
                self.failures.append(f"{sent.status} {version}: {content}")
                return
            self.answered_by[text] = version
            self.call_ids[text] = sent.headers["x-denizen-call-id"]


def plan(versions: list[str]) -> Iterator[tuple[str, dict]]:
    """Yield what to ask the service: to and fro between two versions, then on to the next."""
    for number in itertools.count():
        before, new = versions[number % NUM_VERSIONS], versions[(number + 1) % NUM_VERSIONS]
        for _ in range(MOVES_PER_VERSION // 2):
            yield f"{new}/promote", {"force": True, "reason": "a test"}
            yield "rollback", {"to": before, "reason": "a test"}
        yield f"{new}/promote", {"force": True, "reason": "a test"}


async def move_about(http: aiohttp.ClientSession, versions: list[str]) -> Counter[str]:
    """Promote the first version, then follow the plan; return how many moves there were of each."""
    first = (f"{versions[0]}/promote", {"force": True, "reason": "a test"})
    moved: Counter[str] = Counter()
    for path, body in itertools.islice(itertools.chain([first], plan(versions)), NUM_MOVES):
        async with http.post(f"/v1/adapters/{path}", json=body) as answer:
            content = await answer.json()
            assert answer.status == 200, content
        moved[path.rpartition("/")[2]] += content["moved"]
    return moved


def recorded(home: Path) -> dict[str, tuple[str, str]]:
    """Return call id -> (adapter, status), from the database file itself."""
    connection = sqlite3.connect(home / "denizen.db")
    try:
        found = connection.execute("SELECT id, adapter, status FROM calls").fetchall()
        return {call_id: (adapter, status) for call_id, adapter, status in found}
    finally:
        connection.close()


@pytest.mark.timeout(180)
async def test_64_streams_through_1000_promotes_and_rollbacks(engine, tmp_path):
    engine.control(chunk_tokens=50, chunk_delay_s=0.15)  # a stream outlives several moves
    with ServiceThread(tmp_path, engine.url, {"engine": {"max_loras": PLACES}}) as service:
        versions = make_versions(service, NUM_VERSIONS)
        async with aiohttp.ClientSession(service.service.url) as http:
            chats = Chats(http)
            talking = [asyncio.create_task(chats.talk(client)) for client in range(NUM_STREAMS)]
            moved = await move_about(http, versions)
            chats.is_over = True
            await asyncio.gather(*talking)
        moves = service.parts.store.versions.moves()
    assert chats.failures == []
    assert moved.total() == NUM_MOVES == len(moves)
    assert min(moved["promote"], moved["rollback"]) > 0.45 * NUM_MOVES

    saw = {
        request.body["messages"][-1]["content"]: request.body["model"]
        for request in engine.requests
        if request.path == "/v1/chat/completions"
    }
    assert {text: saw[text] for text in chats.answered_by} == chats.answered_by
    records = recorded(tmp_path)
    for text, call_id in chats.call_ids.items():
        assert records[call_id] == (chats.answered_by[text], "ok")
    assert set(chats.answered_by.values()) >= set(versions)
    assert engine.adapters.most_held <= PLACES
    assert engine.adapters.num_evictions == 0
