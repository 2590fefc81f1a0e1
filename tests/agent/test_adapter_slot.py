"""The pointer and the leases, over one engine."""

import asyncio
import shutil

import pytest

from agent.errors import EngineRejectedError, EngineUnavailableError
from memory.errors import AdapterError, ConflictError, NotFoundError
from tests.agent.slots import HELLO, V1, V2, V3, V4, V5, V6, ask, go_live, wait_for

STEP = "denizen-000007-step-03"


async def test_the_base_model_answers_at_first(slot):
    assert slot.live == "base"
    assert (await ask(slot)).startswith("Well, let me think")


async def test_nothing_answers_before_the_engine_was_looked_at(make_slot):
    slot = make_slot()
    with pytest.raises(EngineUnavailableError, match="has not answered yet"):
        await ask(slot)
    assert len(slot.not_ready()) == 1


async def test_publishing_loads_and_probes_but_moves_nothing(slot, engine, files):
    await slot.publish(V1)
    assert files.checked == [V1]
    assert list(engine.adapters) == [V1]
    assert slot.live == "base"
    assert (await ask(slot)).startswith("Well")


async def test_a_move_is_visible_to_the_very_next_request_both_ways(slot, engine):
    await go_live(slot, V1)
    assert (await ask(slot)).startswith(V1)
    admin = engine.paths("/v1/load") + engine.paths("/v1/completions")
    slot.move("base")  # not a coroutine: nothing happens between it and what follows
    assert (await ask(slot)).startswith("Well")
    slot.move(V1)
    assert (await ask(slot)).startswith(V1)
    assert engine.paths("/v1/load") + engine.paths("/v1/completions") == admin


async def test_going_back_to_the_version_before_loads_and_probes_nothing(slot, engine, files):
    await go_live(slot, V1)
    await go_live(slot, V2)
    num_requests, files.checked = len(engine.requests), []
    await go_live(slot, V1)
    assert len(engine.requests) == num_requests
    assert files.checked == []
    assert (await ask(slot)).startswith(V1)


async def test_a_version_that_is_not_loaded_cannot_go_live(slot):
    with pytest.raises(ConflictError, match="publish it first"):
        slot.move(V1)
    assert slot.live == "base"


async def test_every_version_has_its_own_name_in_the_engine_before_it_is_asked_for(slot, engine):
    for version in (V1, V2, V3):
        await go_live(slot, version)
        await ask(slot)
    seen = [
        request.body.get("lora_name") or request.body["model"]
        for request in engine.requests
        if request.path in {"/v1/load_lora_adapter", "/v1/chat/completions"}
    ]
    assert seen == [V1, V1, V2, V2, V3, V3]  # loaded, then asked; never loaded under an old name


async def test_a_version_is_loaded_once_and_never_in_place(slot, engine, files):
    await go_live(slot, V1)
    shutil.move(files.root / V1, files.root / "moved away")
    for _ in range(20):
        assert (await ask(slot)).startswith(V1)
    bodies = [request.body for request in engine.requests if "load_lora" in request.path]
    assert bodies == [{"lora_name": V1, "lora_path": str(files.root / V1)}]


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
    assert (slot.live, slot.resident) == (V1, (V1,))
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


async def test_a_version_that_is_asked_for_by_name_is_loaded_and_probed_once(slot, engine):
    for _ in range(3):
        assert (await ask(slot, V3)).startswith(V3)
    assert slot.live == "base"
    assert len(engine.paths("/v1/load")) == 1
    probed = [r.body["model"] for r in engine.requests if r.path == "/v1/completions"]
    assert probed == ["base", V3, "base"]


async def test_many_who_ask_for_an_absent_version_at_once_load_it_once(slot, engine):
    answers = await asyncio.gather(*(ask(slot, V3) for _ in range(16)))
    assert all(answer.startswith(V3) for answer in answers)
    assert len(engine.paths("/v1/load")) == 1


async def test_a_version_without_effect_never_answers_under_its_name(slot, engine):
    engine.control(no_effect=True)
    with pytest.raises(AdapterError, match="no effect"):
        await ask(slot, V3)
    assert not [request for request in engine.requests if "chat" in request.path]
    await wait_for(lambda: not engine.adapters)


async def test_a_hundred_promotions_keep_four_resident_and_the_first_comes_back(slot, engine):
    for number in range(1, 101):
        await go_live(slot, f"denizen-{number:06d}")
    assert slot.resident[-1] == "denizen-000100"
    await go_live(slot, V1)
    assert (await ask(slot)).startswith(V1)
    assert engine.adapters.most_held == 4 == len(slot.resident)


async def test_a_stream_keeps_its_version_through_later_promotions(slot, engine):
    engine.control(chunk_delay_s=0.02)
    await go_live(slot, V1)
    async with slot.lease(slot.live) as lease:
        events = lease.client.stream({"messages": HELLO, "stream": True, "model": lease.model})
        texts = [await anext(events)]
        for version in (V2, V3, V4, V5, V6):
            await go_live(slot, version)
            assert V1 in engine.adapters
        texts += [event async for event in events]
    assert V1 in b"".join(texts).decode()
    assert engine.adapters.most_held == 4
    assert not [r for r in engine.requests if "unload" in r.path and r.body["lora_name"] == V1]


async def test_passing_weights_are_leased_by_name_and_unloaded_after_their_last_lease(
    slot, engine, tmp_path
):
    await slot.load_ephemeral(STEP, tmp_path)
    async with slot.lease(STEP) as lease:
        assert lease.model == STEP
        slot.unload(STEP)
        assert STEP in engine.adapters
        with pytest.raises(NotFoundError):  # whoever comes later is too late
            await ask(slot, STEP)
    await wait_for(lambda: STEP not in engine.adapters)


@pytest.mark.parametrize("name", ["denizen-000007", "base", "denizen-000007-step-../x"])
async def test_passing_weights_need_their_kind_of_name(slot, tmp_path, name):
    with pytest.raises(AdapterError):
        await slot.load_ephemeral(name, tmp_path)


async def test_passing_weights_that_are_refused_are_forgotten(slot, engine, tmp_path):
    engine.control(refuse_load={STEP: 500})
    with pytest.raises(AdapterError, match="refused"):
        await slot.load_ephemeral(STEP, tmp_path)
    engine.reset()
    with pytest.raises(NotFoundError):
        await ask(slot, STEP)


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
    assert slot.not_ready() == []


async def test_an_engine_may_call_its_base_model_otherwise(make_slot, engine, monkeypatch):
    monkeypatch.setattr(engine, "base_name", "HuggingFaceTB/SmolLM2-135M-Instruct")
    slot = make_slot()
    await slot.reload_after_restart()
    async with slot.lease("base") as lease:
        assert lease.model == "HuggingFaceTB/SmolLM2-135M-Instruct"
    await slot.publish(V1)


async def test_no_request_fails_while_versions_come_and_go(slot):
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
