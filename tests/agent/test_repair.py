"""Engines that come back without what they should have, and versions that cannot come back."""

import asyncio
import time
from pathlib import Path

import pytest

from agent import repair
from agent.errors import EngineError, EngineUnavailableError
from memory.errors import AdapterError
from tests.agent.slots import V1, V2, V3, ask, go_live, wait_for


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(repair, "REPAIR_PAUSE_S", 0.05)


def restart(slot, engine, reason: str = "gone") -> None:
    """Let the engine crash and come back empty, as its watcher sees it."""
    engine.stop()
    slot.mark_down(slot.clients[0], reason)
    engine.start()
    engine.requests.clear()


async def test_a_dead_engine_is_unavailable_and_never_answers_as_base(slot, engine):
    await go_live(slot, V1)
    engine.stop()
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    slot.mark_down(slot.clients[0], "vLLM ended with status 137")
    with pytest.raises(EngineUnavailableError, match="status 137") as caught:
        await ask(slot)
    assert caught.value.retry_after_s > 0


async def test_after_a_restart_the_live_version_is_loaded_and_probed_before_it_is_asked(
    slot, engine
):
    await go_live(slot, V1)
    await go_live(slot, V2)
    restart(slot, engine)
    assert engine.adapters == {}
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    await slot.reload_after_restart()
    assert (await ask(slot)).startswith(V2)
    assert set(engine.adapters) == {V1, V2}
    seen = [(one.path.split("/")[-1], one.body) for one in engine.requests if one.body]
    assert [
        (path, body.get("lora_name") or body["model"]) for path, body in seen if body is not None
    ] == [
        ("load_lora_adapter", V2),
        *[("completions", model) for model in ("base", V2, "base")],
        ("completions", V2),  # used, so that the next load does not push it out
        ("load_lora_adapter", V1),
        *[("completions", model) for model in ("base", V1, "base")],
        ("completions", V2),  # the chat
    ]


async def test_an_adapter_that_lost_its_effect_over_a_restart_does_not_answer(slot, engine):
    await go_live(slot, V1)
    restart(slot, engine)
    engine.control(no_effect=True)
    await slot.reload_after_restart()
    assert "no effect" in slot.not_ready()[0]
    with pytest.raises(EngineUnavailableError, match="no effect"):
        await ask(slot)
    engine.reset()
    await wait_for(lambda: slot.not_ready() == [])  # it is tried again by itself
    assert (await ask(slot)).startswith(V1)


async def test_an_engine_that_was_only_out_of_reach_keeps_its_adapters_and_is_probed_again(
    slot, engine
):
    await go_live(slot, V1)
    slot.mark_down(slot.clients[0], "it does not answer")
    engine.requests.clear()
    await slot.reload_after_restart()
    assert [one.path.split("/")[-1] for one in engine.requests] == ["models", *["completions"] * 3]
    assert (await ask(slot)).startswith(V1)


async def test_a_restart_that_nobody_noticed_is_a_503_and_repairs_itself(slot, engine):
    await go_live(slot, V1)
    engine.stop()
    engine.start()
    refused = 0
    for _ in range(200):
        try:
            assert (await ask(slot)).startswith(V1)  # never the base model's answer
            break
        except EngineUnavailableError as error:
            assert error.retry_after_s > 0
            refused += 1
            await asyncio.sleep(0.01)
    assert 0 < refused < 200


async def test_many_requests_that_meet_the_loss_at_once_cause_one_repair_without_a_pause(
    slot, engine, monkeypatch
):
    monkeypatch.setattr(repair, "REPAIR_PAUSE_S", 30.0)
    await go_live(slot, V1)
    engine.adapters.lose_all()
    lost = await asyncio.gather(*(ask(slot) for _ in range(64)), return_exceptions=True)
    assert {type(one) for one in lost} == {EngineUnavailableError}
    await wait_for(lambda: slot.not_ready() == [])
    assert (await ask(slot)).startswith(V1)
    assert len(engine.paths("/v1/load_lora_adapter")) == 2


async def test_a_second_loss_while_the_first_is_repaired_is_repaired_at_once_too(
    slot, engine, monkeypatch
):
    monkeypatch.setattr(repair, "REPAIR_PAUSE_S", 30.0)
    await go_live(slot, V1)
    await go_live(slot, V2)
    engine.adapters.lose_all()
    engine.control(load_delay_s=0.2)
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    await wait_for(lambda: len(engine.paths("/v1/load_lora_adapter")) == 4)  # V2 is there again,
    engine.adapters.lose_all()  # and lost while V1 is loaded
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    assert slot.not_ready() != []
    await wait_for(lambda: slot.not_ready() == [])
    assert (await ask(slot)).startswith(V2)


async def test_an_engine_that_answers_again_is_restored_before_the_next_attempt_is_due(
    slot, engine, monkeypatch
):
    monkeypatch.setattr(repair, "REPAIR_PAUSE_S", 30.0)
    await go_live(slot, V1)
    engine.stop()
    with pytest.raises(EngineUnavailableError):
        await ask(slot)
    await wait_for(lambda: slot.not_ready() != [])
    engine.start()
    await slot.restore(slot.clients[0])  # its watcher has seen it
    assert (await ask(slot)).startswith(V1)


async def test_an_engine_that_restarts_empty_in_the_middle_of_traffic_never_answers_as_base(
    slot, engine
):
    await go_live(slot, V1)
    answered, refused = [], 0

    async def chat() -> None:
        nonlocal refused
        while len(answered) < 400:
            try:
                answered.append((await ask(slot)).partition(":")[0])
            except (EngineError, EngineUnavailableError):  # cut in the middle, or not begun
                refused += 1
                await asyncio.sleep(0.01)

    chats = [asyncio.create_task(chat()) for _ in range(8)]
    await wait_for(lambda: len(answered) > 100)
    await asyncio.to_thread(lambda: (engine.stop(), engine.start()))
    await asyncio.wait_for(asyncio.gather(*chats), 20)
    assert set(answered) == {V1}
    assert refused > 0


async def test_an_error_that_nobody_foresaw_does_not_end_the_repair(make_slot, files):
    slot = make_slot(live=V1)
    path_of, failures = files.path_of, iter([OSError(24, "Too many open files")])

    async def sometimes(version: str) -> Path:
        for failure in failures:
            raise failure
        return await path_of(version)

    files.path_of = sometimes
    await slot.reload_after_restart()
    assert "Too many open files" in slot.not_ready()[0]
    await wait_for(lambda: not slot.not_ready())
    assert (await ask(slot)).startswith(V1)


async def test_a_start_with_a_live_version_loads_it_first(make_slot, engine):
    slot = make_slot(live=V2, previous=V1)
    await slot.reload_after_restart()
    assert list(engine.adapters) == [V2, V1]
    assert (await ask(slot)).startswith(V2)


async def test_a_start_with_room_for_one_leaves_the_version_before_out(make_slot, engine):
    slot = make_slot(live=V2, previous=V1, max_resident=1)
    await slot.reload_after_restart()
    assert list(engine.adapters) == [V2]
    assert slot.not_ready() == []


@pytest.mark.parametrize("fault", ["its files", "the engine"])
async def test_a_live_version_that_cannot_come_back_says_why_and_one_can_roll_back_to_any_other(
    slot, engine, files, fault
):
    for version in (V1, V2, V3):
        await go_live(slot, version)
    restart(slot, engine)
    if fault == "its files":
        files.broken.add(V3)
    else:
        engine.control(refuse_load={V3: 500})
    await slot.reload_after_restart()
    [reason] = slot.not_ready()
    assert V3 in reason
    assert slot.engines()[0]["is_up"]
    with pytest.raises(EngineUnavailableError, match=V3):
        await ask(slot)  # not base's answer
    assert (await ask(slot, "base")).startswith("Well")  # unless base was asked for
    assert (await ask(slot, V2)).startswith(V2)
    await go_live(slot, V1)  # neither the version before nor base
    assert slot.not_ready() == []
    assert (await ask(slot)).startswith(V1)


async def test_a_live_version_whose_files_are_mended_comes_back_by_itself(make_slot, engine, files):
    files.broken.add(V1)
    slot = make_slot(live=V1)
    await slot.reload_after_restart()
    assert V1 in slot.not_ready()[0]
    files.broken.clear()
    await wait_for(lambda: slot.not_ready() == [])
    assert (await ask(slot)).startswith(V1)


async def test_a_previous_version_that_cannot_be_loaded_does_not_matter(make_slot, files):
    files.broken.add(V1)
    slot = make_slot(live=V2, previous=V1)
    await slot.reload_after_restart()
    assert slot.not_ready() == []
    assert (await ask(slot)).startswith(V2)


async def test_looking_again_at_a_healthy_engine_is_one_request(slot, engine):
    await go_live(slot, V1)
    engine.requests.clear()
    await slot.reload_after_restart()
    assert engine.paths() == ["/v1/models"]


async def test_a_look_while_versions_are_loaded_takes_none_for_lost(slot, engine):
    async def look() -> None:
        for _ in range(100):
            await slot.reload_after_restart()

    looking = asyncio.create_task(look())
    for number in range(1, 21):
        await go_live(slot, f"denizen-{number:06d}")
        assert slot.not_ready() == []
    await looking
    loaded = [r.body["lora_name"] for r in engine.requests if r.path == "/v1/load_lora_adapter"]
    assert len(loaded) == len(set(loaded)) == 20


async def test_a_look_that_is_older_than_a_load_does_not_undo_it(slot, engine, monkeypatch):
    await go_live(slot, V1)
    await ask(slot, V2)
    client = slot.clients[0]
    served = client.served

    async def served_late():
        slot.unload(V2)
        await wait_for(lambda: V2 not in engine.adapters)
        seen = await served()
        await ask(slot, V2)
        return seen

    monkeypatch.setattr(client, "served", served_late)
    await slot.restore(client)
    assert slot.resident == (V1, V2)


async def test_a_server_replaced_by_one_with_other_files_under_the_same_name_is_noticed(
    slot, engine, tmp_path
):
    await go_live(slot, V1)
    engine.adapters[V1] = "/somewhere/else"
    await slot.reload_after_restart()
    assert engine.adapters[V1] == str(tmp_path / V1)
    assert (await ask(slot)).startswith(V1)


async def test_a_server_replaced_by_one_of_another_base_model_answers_nothing(slot, engine):
    assert (await ask(slot)).startswith("Well")
    engine.root = "another/model"
    await slot.reload_after_restart()
    with pytest.raises(EngineUnavailableError, match="another/model now, not fake/base"):
        await ask(slot)


async def test_an_engine_that_is_marked_down_stays_down_until_it_is_restored(slot, engine):
    await go_live(slot, V1)
    engine.stop()
    with pytest.raises(EngineUnavailableError):
        await ask(slot)  # the slot begins to look for itself
    slot.mark_down(slot.clients[0], "it computes nothing")
    engine.start()
    deadline = time.monotonic() + 0.3  # several pauses between attempts
    while time.monotonic() < deadline:
        assert "computes nothing" in slot.not_ready()[0]
        await asyncio.sleep(0.02)
    await slot.restore(slot.clients[0])
    assert (await ask(slot)).startswith(V1)


async def test_marking_an_engine_down_while_it_is_mended_wins(slot, engine):
    await go_live(slot, V1)
    restart(slot, engine)
    engine.control(load_delay_s=0.2)
    restoring = asyncio.create_task(slot.restore(slot.clients[0]))
    await wait_for(lambda: "/v1/load_lora_adapter" in engine.paths())
    slot.mark_down(slot.clients[0], "it hangs")
    await asyncio.wait_for(restoring, 2.0)
    await asyncio.sleep(0.3)
    assert "it hangs" in slot.not_ready()[0]


async def test_publishing_while_no_engine_is_up_is_refused(slot):
    slot.mark_down(slot.clients[0], "vLLM is starting")
    with pytest.raises(EngineUnavailableError, match="is starting"):
        await slot.publish(V1)


async def test_a_candidate_without_effect_does_not_disturb_the_live_version(slot, engine):
    await go_live(slot, V1)
    engine.control(no_effect=True)
    with pytest.raises(AdapterError):
        await slot.publish(V2)
    assert slot.not_ready() == []
