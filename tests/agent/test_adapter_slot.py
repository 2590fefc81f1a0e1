import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from agent import adapter_slot
from agent.adapter_slot import AdapterSlot
from agent.errors import EngineRejectedError, EngineUnavailableError
from agent.policy import PolicyClient
from memory.errors import AdapterError, ConflictError, NotFoundError
from tests.fake_engine import FakeEngine

HELLO = [{"role": "user", "content": "3 * 4 = ?"}]
V1, V2, V3, V4, V5 = (f"denizen-{number:06d}" for number in range(1, 6))


class Files:
    """Adapter folders by version; what is in ``broken`` fails its check."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken: set[str] = set()
        self.checked: list[str] = []

    async def path_of(self, version: str) -> Path:
        self.checked.append(version)
        if version in self.broken:
            raise AdapterError(f"{version}: adapter_model.safetensors is not what was recorded")
        if int(version[-6:]) > 200:
            raise NotFoundError(f"there is no adapter version {version}")
        folder = self.root / version
        folder.mkdir(exist_ok=True)
        return folder


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def files(tmp_path) -> Files:
    return Files(tmp_path)


@pytest.fixture
async def make_slot(engine, files) -> AsyncIterator[Callable[..., AdapterSlot]]:
    made: list[tuple[AdapterSlot, list[PolicyClient]]] = []

    def make(*engines: FakeEngine, **options) -> AdapterSlot:
        clients = [PolicyClient(one.url) for one in engines or (engine,)]
        slot = AdapterSlot(clients, files, **options)
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


async def ask(slot: AdapterSlot, version: str | None = None) -> str:
    async with slot.lease(version or slot.live) as lease:
        answer = await lease.client.chat({"model": lease.model, "messages": HELLO})
    return answer["choices"][0]["message"]["content"]


async def go_live(slot: AdapterSlot, version: str) -> None:
    await slot.publish(version)
    slot.move(version)


async def wait_for(claim: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_the_base_model_answers_at_first(slot):
    assert slot.live == "base"
    assert (await ask(slot)).startswith("Well, let me think")


async def test_nothing_answers_before_the_engine_was_looked_at(make_slot):
    slot = make_slot()
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    assert len(slot.down_reasons()) == 1


async def test_publishing_loads_and_probes_but_moves_nothing(slot, engine, files):
    await slot.publish(V1)
    assert files.checked == [V1]
    assert list(engine.adapters) == [V1]
    assert slot.live == "base"
    assert (await ask(slot)).startswith("Well")


async def test_after_the_move_the_version_answers_and_can_be_left_again(slot, engine):
    await go_live(slot, V1)
    assert (await ask(slot)).startswith(V1)
    loads = engine.paths("/v1/load")
    slot.move("base")
    assert (await ask(slot)).startswith("Well")
    slot.move(V1)
    assert (await ask(slot)).startswith(V1)
    assert engine.paths("/v1/load") == loads  # rolling back and forth loads nothing


async def test_a_version_that_is_not_loaded_cannot_go_live(slot):
    with pytest.raises(ConflictError, match="publish it first"):
        slot.move(V1)
    assert slot.live == "base"


async def test_an_adapter_without_effect_is_refused_and_not_kept(slot, engine):
    engine.control(no_effect=True)
    with pytest.raises(AdapterError, match="no effect"):
        await slot.publish(V1)
    assert slot.resident == ()
    await wait_for(lambda: not engine.adapters)
    assert (await ask(slot)).startswith("Well")


async def test_a_load_that_the_engine_refuses_leaves_everything_as_it_was(slot, engine):
    await go_live(slot, V1)
    engine.control(refuse_load={V2: 500})
    with pytest.raises(AdapterError, match=V2):
        await slot.publish(V2)
    assert slot.live == V1
    assert slot.resident == (V1,)
    assert (await ask(slot)).startswith(V1)


async def test_broken_files_never_reach_the_engine(slot, engine, files):
    files.broken.add(V1)
    with pytest.raises(AdapterError, match="not what was recorded"):
        await slot.publish(V1)
    assert engine.paths("/v1/load") == []


@pytest.mark.parametrize(
    "name",
    ["denizen-000999", "../x", "denizen-1", "denizen-000001/..", "", "denizen-0000011", "x\0"],
)
async def test_an_unknown_or_malformed_version_is_not_found(slot, engine, name):
    with pytest.raises(NotFoundError):
        async with slot.lease(name):
            pass
    assert engine.paths("/v1/load") == []


async def test_a_known_version_is_loaded_when_it_is_asked_for(slot):
    assert (await ask(slot, V3)).startswith(V3)
    assert slot.live == "base"


async def test_a_hundred_promotions_keep_four_resident_and_the_first_comes_back(slot, engine):
    most = 0
    for number in range(1, 101):
        await go_live(slot, f"denizen-{number:06d}")
        most = max(most, len(engine.adapters))
    assert most <= 4
    assert len(slot.resident) == 4
    assert slot.resident[-1] == "denizen-000100"
    await go_live(slot, V1)
    assert (await ask(slot)).startswith(V1)


async def test_live_and_previous_stay_when_room_is_made(make_slot):
    slot = make_slot(max_resident=2)
    await slot.reload_after_restart()
    await go_live(slot, V1)
    await go_live(slot, V2)
    assert (await ask(slot, V3)).startswith(V3)
    assert {V1, V2} <= set(slot.resident)
    assert (await ask(slot, V4)).startswith(V4)
    assert set(slot.resident) == {V1, V2, V4}


async def test_a_stream_keeps_its_version_through_later_promotions(slot, engine):
    engine.control(chunk_delay_s=0.02)
    await go_live(slot, V1)
    body = {"messages": HELLO, "stream": True}
    async with slot.lease(slot.live) as lease:
        events = lease.client.stream({**body, "model": lease.model})
        await anext(events)
        for version in (V2, V3, V4, V5, "denizen-000006"):
            await go_live(slot, version)
        assert V1 in engine.adapters
        assert len([event async for event in events]) > 0
    assert V1 in slot.resident


async def test_the_least_recently_used_version_goes_first(make_slot, engine):
    slot = make_slot(max_resident=3)
    await slot.reload_after_restart()
    for version in (V1, V2, V3):
        await ask(slot, version)
    await ask(slot, V1)
    await ask(slot, V4)
    assert slot.resident == (V3, V1, V4)
    assert V2 not in engine.adapters


async def test_an_unload_that_never_returns_does_not_block_chat(make_slot, engine, monkeypatch):
    monkeypatch.setattr(adapter_slot, "ROOM_TIMEOUT_S", 0.05)
    slot = make_slot(max_resident=2)
    await slot.reload_after_restart()
    engine.control(unload_hangs=True)
    await go_live(slot, V1)
    await ask(slot, V2)
    publishing = asyncio.create_task(slot.publish(V3))
    began = time.monotonic()
    assert (await ask(slot)).startswith(V1)
    assert time.monotonic() - began < 1.0
    await publishing
    slot.move(V3)
    assert (await ask(slot)).startswith(V3)


async def test_a_version_asked_for_while_it_is_unloaded_is_loaded_again(make_slot, engine):
    slot = make_slot(max_resident=2)
    await slot.reload_after_restart()
    await slot.publish(V1)
    slot.unload(V1)
    assert (await ask(slot, V1)).startswith(V1)
    await asyncio.sleep(0.05)
    assert V1 in engine.adapters


async def test_a_dead_engine_is_unavailable_and_never_answers_as_base(slot, engine):
    await go_live(slot, V1)
    engine.stop()
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    slot.mark_down("vLLM ended with status 137")
    with pytest.raises(EngineUnavailableError, match="status 137") as caught:
        await ask(slot)
    assert caught.value.retry_after_s > 0


async def test_after_a_restart_the_live_version_is_loaded_before_it_is_asked(slot, engine):
    await go_live(slot, V1)
    await go_live(slot, V2)
    engine.stop()
    slot.mark_down("gone")
    engine.start()
    engine.requests.clear()
    assert engine.adapters == {}
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    await slot.reload_after_restart()
    assert (await ask(slot)).startswith(V2)
    assert set(engine.adapters) == {V1, V2}
    chats = [index for index, one in enumerate(engine.requests) if "chat" in one.path]
    loads = [index for index, one in enumerate(engine.requests) if "load" in one.path]
    assert max(loads) < min(chats)


async def test_a_restart_that_nobody_noticed_is_a_503_and_repairs_itself(slot, engine):
    await go_live(slot, V1)
    engine.stop()
    engine.start()
    refused = 0
    for _ in range(200):
        try:
            assert (await ask(slot)).startswith(V1)  # never the base model's answer
            break
        except EngineUnavailableError:
            refused += 1
            await asyncio.sleep(0.01)
    assert 0 < refused < 200


async def test_a_start_with_a_live_version_loads_it_first(make_slot, engine):
    slot = make_slot(live=V2, previous=V1)
    await slot.reload_after_restart()
    assert set(engine.adapters) == {V1, V2}
    assert (await ask(slot)).startswith(V2)


async def test_a_live_version_that_cannot_be_loaded_keeps_the_engine_down(make_slot, engine, files):
    files.broken.add(V1)
    slot = make_slot(live=V1)
    await slot.reload_after_restart()
    assert V1 in slot.down_reasons()[0]
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    files.broken.clear()
    await slot.reload_after_restart()
    assert (await ask(slot)).startswith(V1)


async def test_a_previous_version_that_cannot_be_loaded_does_not_matter(make_slot, files):
    files.broken.add(V1)
    slot = make_slot(live=V2, previous=V1)
    await slot.reload_after_restart()
    assert slot.down_reasons() == []
    assert (await ask(slot)).startswith(V2)


async def test_looking_again_at_a_healthy_engine_loads_nothing(slot, engine):
    await go_live(slot, V1)
    loads = engine.paths("/v1/load")
    await slot.reload_after_restart()
    assert engine.paths("/v1/load") == loads


async def test_passing_weights_are_leased_by_name_and_unloaded_after_their_last_lease(
    slot, engine, tmp_path
):
    name = "denizen-000007-step-03"
    await slot.load_ephemeral(name, tmp_path)
    async with slot.lease(name) as lease:
        assert lease.model == name
        slot.unload(name)
        assert name in engine.adapters
    await wait_for(lambda: name not in engine.adapters)
    with pytest.raises(NotFoundError):
        async with slot.lease(name):
            pass


@pytest.mark.parametrize("name", ["denizen-000007", "base", "denizen-000007-step-../x"])
async def test_passing_weights_need_their_kind_of_name(slot, tmp_path, name):
    with pytest.raises(AdapterError):
        await slot.load_ephemeral(name, tmp_path)


async def test_live_and_previous_cannot_be_unloaded(slot):
    await go_live(slot, V1)
    await go_live(slot, V2)
    for version in (V1, V2):
        with pytest.raises(ConflictError):
            slot.unload(version)
    slot.unload("denizen-000150")  # not loaded: nothing to do


async def test_a_404_of_the_base_model_is_passed_on(slot):
    with pytest.raises(EngineRejectedError):
        async with slot.lease("base") as lease:
            await lease.client.chat({"model": "nope", "messages": HELLO})
    assert slot.down_reasons() == []


async def test_a_failed_request_gives_its_lease_back(make_slot, engine):
    slot = make_slot(max_resident=1)
    await slot.reload_after_restart()
    engine.control(http_error=500)
    for _ in range(3):
        with pytest.raises(Exception, match="ordered by the test"):
            await ask(slot, V1)
    engine.reset()
    await ask(slot, V2)
    assert slot.resident == (V2,)


async def test_no_request_fails_while_versions_come_and_go(slot, engine):
    stop = asyncio.Event()

    async def chat() -> int:
        count = 0
        while not stop.is_set():
            version = slot.live
            text = await ask(slot, version)
            assert text.startswith("Well" if version == "base" else version)
            count += 1
        return count

    chats = [asyncio.create_task(chat()) for _ in range(16)]
    for number in range(1, 21):
        await go_live(slot, f"denizen-{number:06d}")
    slot.move("denizen-000019")
    stop.set()
    assert min(await asyncio.gather(*chats)) > 0


@pytest.fixture
def second() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


async def test_every_engine_gets_the_version_and_the_less_busy_one_is_asked(
    make_slot, engine, second
):
    slot = make_slot(engine, second)
    await slot.reload_after_restart()
    await go_live(slot, V1)
    assert list(engine.adapters) == list(second.adapters) == [V1]
    async with slot.lease(V1) as one, slot.lease(V1) as other:
        assert one.client is not other.client


async def test_when_one_engine_refuses_none_keeps_the_version(make_slot, engine, second):
    slot = make_slot(engine, second)
    await slot.reload_after_restart()
    second.control(refuse_load={V1: 500})
    with pytest.raises(AdapterError):
        await slot.publish(V1)
    await wait_for(lambda: not engine.adapters)
    assert slot.resident == ()


async def test_an_engine_that_is_down_gets_what_it_missed_before_it_is_asked(
    make_slot, engine, second
):
    slot = make_slot(engine, second)
    second.stop()
    await slot.reload_after_restart()
    assert len(slot.down_reasons()) == 1
    await go_live(slot, V1)
    assert (await ask(slot)).startswith(V1)
    second.start()
    await slot.reload_after_restart()
    assert slot.down_reasons() == []
    assert list(second.adapters) == [V1]


async def test_an_engine_may_call_its_base_model_otherwise(make_slot, engine, monkeypatch):
    monkeypatch.setattr(engine, "base_name", "HuggingFaceTB/SmolLM2-135M-Instruct")
    slot = make_slot()
    await slot.reload_after_restart()
    async with slot.lease("base") as lease:
        assert lease.model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    await slot.publish(V1)
