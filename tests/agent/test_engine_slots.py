"""Places in one engine: who goes, who waits, and what an engine that misbehaves can not take."""

import asyncio
import time
from itertools import pairwise

import pytest

from agent import engine_slots, metrics, unloads
from agent.engine_slots import NoRoomError
from memory.errors import DenizenError
from tests.agent.slots import V1, V2, V3, V4, V5, ask, go_live, wait_for
from tests.fake_engine import FakeEngine

STEPS = [f"denizen-000007-step-{number:02d}" for number in range(1, 6)]


@pytest.fixture
async def make_up(make_slot):
    """Make slots that were looked at."""

    async def make(*engines, **options):
        slot = make_slot(*engines, **options)
        await slot.reload_after_restart()
        return slot

    return make


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Give up waiting for room after 0.2 s."""
    monkeypatch.setattr(engine_slots, "ROOM_TIMEOUT_S", 0.2)


async def test_the_least_recently_used_version_goes_first(make_up, engine):
    slot = await make_up(max_resident=3)
    for version in (V1, V2, V3):
        await ask(slot, version)
    await ask(slot, V1)
    await ask(slot, V4)
    assert slot.resident == (V3, V1, V4)
    assert V2 not in engine.adapters


async def test_live_and_previous_stay_when_another_can_go(make_up):
    slot = await make_up(max_resident=3)
    await go_live(slot, V1)
    await go_live(slot, V2)
    for version in (V3, V4, V5):
        assert (await ask(slot, version)).startswith(version)
        assert set(slot.resident) == {V1, V2, version}


async def test_the_version_before_goes_when_nothing_else_can(make_up, engine):
    slot = await make_up(max_resident=2)
    await go_live(slot, V1)
    await go_live(slot, V2)
    assert (await ask(slot, V3)).startswith(V3)
    assert set(slot.resident) == {V2, V3}
    await go_live(slot, V1)  # the rollback costs a load, and works
    assert (await ask(slot)).startswith(V1)
    assert engine.adapters.most_held == 2


async def test_two_places_are_enough_to_promote_and_to_roll_back(make_up, engine):
    slot = await make_up(max_resident=2)
    for version in (V1, V2, V3, V2, V1, V4):
        await go_live(slot, version)
        assert (await ask(slot)).startswith(version)
    assert engine.adapters.most_held == 2


async def test_three_places_are_enough_to_learn_beside_a_live_version(make_up, engine, tmp_path):
    slot = await make_up(max_resident=3)
    await go_live(slot, V1)
    await go_live(slot, V2)
    for before, step in pairwise([None, *STEPS]):  # as a learning cycle does it
        await slot.load_ephemeral(step, tmp_path)
        if before is not None:
            slot.unload(before)
        assert (await ask(slot, step)).startswith(step)
        assert (await ask(slot)).startswith(V2)
    slot.unload(STEPS[-1])
    await go_live(slot, V3)
    assert engine.adapters.most_held == 3


async def test_steps_of_learning_push_out_no_version_that_nobody_asked_for_meanwhile(
    make_up, tmp_path
):
    with FakeEngine(max_loras=4) as engine:
        slot = await make_up(engine, max_resident=4)
        await go_live(slot, V1)
        await go_live(slot, V2)
        for before, step in pairwise([None, *STEPS]):
            if before is not None:
                slot.unload(before)
            await slot.load_ephemeral(step, tmp_path)
        assert engine.adapters.num_evictions == 0
        assert (await ask(slot)).startswith(V2)
        assert (await ask(slot, V1)).startswith(V1)


async def test_two_places_are_too_few_to_learn_beside_a_live_version(make_up, tmp_path, impatient):
    slot = await make_up(max_resident=2)
    await go_live(slot, V1)
    await slot.load_ephemeral(STEPS[0], tmp_path)
    with pytest.raises(NoRoomError):
        await slot.load_ephemeral(STEPS[1], tmp_path)


async def test_a_load_without_room_fails_in_time_and_says_what_holds_the_places(
    make_up, engine, impatient
):
    slot = await make_up(max_resident=2)
    await go_live(slot, V1)
    async with slot.lease(V2):
        began = time.monotonic()
        with pytest.raises(NoRoomError, match=r"max_loras.*000001.*000002 \(1 in use\)") as caught:
            await slot.publish(V3)
        assert 0.2 <= time.monotonic() - began < 2.0
        assert caught.value.status == 503
        assert caught.value.retry_after_s > 0
    assert slot.live == V1
    assert V3 not in engine.adapters
    assert engine.adapters.most_held == 2


async def test_many_who_wait_for_room_all_give_up_in_time(make_up, impatient):
    slot = await make_up(max_resident=2)
    await go_live(slot, V1)
    async with slot.lease(V2):
        began = time.monotonic()
        waiting = (slot.publish(f"denizen-{number:06d}") for number in range(10, 20))
        failures = await asyncio.gather(*waiting, return_exceptions=True)
        assert time.monotonic() - began < 2.0  # not ten waits after each other
    assert [type(failure) for failure in failures] == [NoRoomError] * 10
    await slot.publish(V3)


async def test_a_load_waits_for_a_lease_to_end_and_chat_does_not_wait_for_the_load(make_up):
    slot = await make_up(max_resident=2)
    await go_live(slot, V1)
    async with slot.lease(V2):
        publishing = asyncio.create_task(slot.publish(V3))
        for _ in range(20):
            assert (await ask(slot)).startswith(V1)
        assert (await ask(slot, "base")).startswith("Well")
        assert not publishing.done()
    await asyncio.wait_for(publishing, 5.0)
    assert set(slot.resident) == {V1, V3}


async def test_those_who_wait_for_room_are_served_in_the_order_of_asking(make_up, engine):
    slot = await make_up(max_resident=2)
    await go_live(slot, V1)
    async with slot.lease(V2):
        waiting = []
        for version in (V3, V4, V5):
            waiting.append(asyncio.create_task(ask(slot, version)))
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
    answers = await asyncio.gather(*waiting)
    assert [answer.partition(":")[0] for answer in answers] == [V3, V4, V5]
    loaded = [r.body["lora_name"] for r in engine.requests if r.path == "/v1/load_lora_adapter"]
    assert loaded == [V1, V2, V3, V4, V5]
    assert engine.adapters.most_held == 2


async def test_a_failed_request_gives_its_lease_back(make_up, engine):
    slot = await make_up(max_resident=1)
    await ask(slot, V1)
    engine.control(http_error=500)
    for _ in range(3):
        with pytest.raises(DenizenError):
            await ask(slot, V1)
    engine.reset()
    await ask(slot, V2)
    assert slot.resident == (V2,)


async def test_an_unload_that_never_returns_blocks_no_chat_and_is_counted_and_logged(
    make_up, engine, monkeypatch, caplog
):
    monkeypatch.setattr(unloads, "UNLOAD_TIMEOUT_S", 1.0)
    slot = await make_up(max_resident=2)
    engine.control(unload_hangs=True)
    counted = metrics.UNLOAD_FAILURES._value.get()
    await go_live(slot, V1)
    await ask(slot, V2)
    publishing = asyncio.create_task(slot.publish(V3))
    await wait_for(lambda: "/v1/unload_lora_adapter" in engine.paths())
    began = time.monotonic()
    for _ in range(5):
        assert (await ask(slot)).startswith(V1)
    assert time.monotonic() - began < 1.0
    assert len(engine.adapters) == 2
    assert not publishing.done()  # its place is not free yet
    await publishing  # a lost answer does not take the place away for ever
    slot.move(V3)
    assert (await ask(slot)).startswith(V3)
    assert metrics.UNLOAD_FAILURES._value.get() == counted + 1
    assert f"did not unload {V2}" in caplog.text


async def test_an_unload_that_hangs_for_a_while_only_delays_the_load(make_up, engine):
    slot = await make_up(max_resident=2)
    engine.control(unload_hangs=True)
    await go_live(slot, V1)
    await ask(slot, V2)
    publishing = asyncio.create_task(slot.publish(V3))
    await wait_for(lambda: "/v1/unload_lora_adapter" in engine.paths())
    assert set(engine.adapters) == {V1, V2}
    await asyncio.sleep(0.1)
    assert not publishing.done()
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert (await ask(slot)).startswith(V1)


async def test_a_version_asked_for_while_it_is_unloaded_is_loaded_again(make_up, engine):
    slot = await make_up(max_resident=2)
    await slot.publish(V1)
    slot.unload(V1)
    assert (await ask(slot, V1)).startswith(V1)
    await asyncio.sleep(0.05)
    assert V1 in engine.adapters
    assert engine.adapters.most_held == 1


async def test_a_load_that_is_given_up_keeps_no_place(make_up, engine):
    slot = await make_up(max_resident=1)
    engine.control(load_delay_s=0.2)
    publishing = asyncio.create_task(slot.publish(V1))
    await wait_for(lambda: "/v1/load_lora_adapter" in engine.paths())
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    engine.reset()
    assert (await ask(slot, V2)).startswith(V2)
    assert slot.resident == (V2,)


async def test_what_another_life_left_in_the_engine_is_unloaded_before_more_is_loaded(
    make_up, engine, files
):
    for number in range(51, 55):  # a service before this one loaded them, and ended
        engine.adapters.load(f"denizen-{number:06d}", str(files.root))
    engine.adapters.load("somebody-elses", str(files.root))
    slot = await make_up(live=V1, max_resident=4)
    assert (await ask(slot)).startswith(V1)
    assert set(engine.adapters) == {V1, "somebody-elses"}
    assert engine.adapters.most_held == 5


async def test_a_name_of_another_life_does_not_pass_for_the_live_version(make_up, engine, files):
    engine.adapters.load(V1, str(files.root / V1))  # under this path, but who knows what of
    slot = await make_up(live=V1)
    assert (await ask(slot)).startswith(V1)
    admin = [r.path.split("/")[-1] for r in engine.requests if "lora" in r.path]
    assert admin == ["unload_lora_adapter", "load_lora_adapter"]


@pytest.mark.parametrize("places", [2, 3, 4])
async def test_whatever_is_asked_for_the_engine_never_holds_more_than_its_places(
    make_up, engine, places
):
    slot = await make_up(max_resident=places)
    versions = [f"denizen-{number:06d}" for number in range(1, 9)]

    async def one(number: int) -> None:
        version = versions[number * 7 % 8]
        try:
            if number % 3 == 0:
                await go_live(slot, version)
            else:
                assert (await ask(slot, version)).startswith(version)
        except NoRoomError:
            pass

    await asyncio.gather(*(one(number) for number in range(60)))
    assert engine.adapters.most_held <= places
