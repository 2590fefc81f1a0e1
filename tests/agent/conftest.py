from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agent.adapter_slot import AdapterSlot
from agent.engine_config import EngineConfig
from agent.policy import PolicyClient
from memory.store import Store
from tests.agent.harness import Harness
from tests.agent.slots import Files
from tests.agent.stand_in import Make, StandIn
from tests.fake_engine import FakeEngine
from tests.running import REPOSITORY


@pytest.fixture
async def make(tmp_path, monkeypatch) -> AsyncIterator[Make]:
    """Make engine processes that run the fake engine, or the Python code that is given."""
    monkeypatch.chdir(REPOSITORY)
    made: list[StandIn] = []

    def start(code: str | None = None, **options: Any) -> StandIn:
        engine = StandIn(
            EngineConfig(**options), model=tmp_path / "model", log_path=tmp_path / "logs/e.log"
        )
        if code is not None:
            engine.program = ("-c", code)
        made.append(engine)
        return engine

    yield start
    for engine in made:
        await engine.stop()


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def second() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def make_slot(engine, files) -> AsyncIterator[Callable[..., AdapterSlot]]:
    """Make slots over given engines, by default the one, that are not yet looked at."""
    made: list[tuple[AdapterSlot, list[PolicyClient]]] = []

    def make(*engines: FakeEngine, **options) -> AdapterSlot:
        clients = [PolicyClient(one.url) for one in engines or (engine,)]
        slot = AdapterSlot(clients, files, **options)
        slot.clients = clients  # for those who watch
        made.append((slot, clients))
        return slot

    yield make
    for slot, clients in made:
        await slot.close()
        for client in clients:
            await client.close()


@pytest.fixture
async def slot(make_slot) -> AdapterSlot:
    slot = make_slot()
    await slot.reload_after_restart()
    return slot


@pytest.fixture
def harness(store: Store) -> Harness:
    return Harness(store)
