"""Several engines: all of them or none, whichever is up, and the one that knows a conversation."""

import asyncio
from collections import Counter
from functools import partial

import pytest

from agent.engine_slots import EngineSlots, Keep
from agent.errors import EngineUnavailableError
from agent.fleet import BUSIER_BY, choose
from agent.policy import PolicyClient
from memory.errors import AdapterError
from tests.agent.slots import HELLO, V1, V2, V3, ask, go_live, wait_for


@pytest.fixture
async def slot(make_slot, engine, second):
    slot = make_slot(engine, second)
    await slot.reload_after_restart()
    return slot


def probed(engine) -> list[str]:
    return [r.body["model"] for r in engine.requests if r.path == "/v1/completions"]


async def test_every_engine_loads_and_probes_before_the_pointer_moves(slot, engine, second):
    await slot.publish(V1)
    assert slot.live == "base"
    for one in (engine, second):
        assert list(one.adapters) == [V1]
        assert probed(one) == ["base", V1, "base"]


async def test_the_less_busy_engine_is_asked(slot):
    await go_live(slot, V1)
    async with slot.lease(V1) as one, slot.lease(V1) as other:
        assert one.client is not other.client


@pytest.mark.parametrize("fault", [{"refuse_load": {V2: 500}}, {"no_effect": True}])
@pytest.mark.parametrize("is_first", [True, False])
async def test_when_one_engine_fails_the_pointer_stays_and_none_keeps_the_version(
    slot, engine, second, fault, is_first
):
    await go_live(slot, V1)
    (engine if is_first else second).control(**fault)
    with pytest.raises(AdapterError, match=V2):
        await slot.publish(V2)
    assert slot.live == V1
    await wait_for(lambda: list(engine.adapters) == list(second.adapters) == [V1])
    engine.reset()
    second.reset()
    assert (await ask(slot)).startswith(V1)


async def test_an_engine_that_dies_while_it_loads_leaves_the_pointer_where_it_was(
    slot, engine, second
):
    await go_live(slot, V1)
    second.control(load_delay_s=0.3)
    publishing = asyncio.create_task(slot.publish(V2))
    await wait_for(lambda: len(second.paths("/v1/load_lora")) == 2)
    second.stop()
    with pytest.raises(EngineUnavailableError):
        await publishing
    assert slot.live == V1
    await wait_for(lambda: list(engine.adapters) == [V1])


async def test_an_engine_that_is_down_is_skipped_and_gets_what_it_missed_before_it_is_asked(
    slot, engine, second
):
    second.stop()
    slot.mark_down(slot.clients[1], "it does not answer")
    await go_live(slot, V1)
    assert slot.not_ready() == []
    assert [(one["is_up"], one["reason"]) for one in slot.engines()] == [
        (True, None),
        (False, "it does not answer"),
    ]
    for _ in range(8):
        assert (await ask(slot)).startswith(V1)
    second.start()
    second.requests.clear()
    await slot.restore(slot.clients[1])
    assert slot.engines()[1]["reason"] is None
    async with slot.lease(V1), slot.lease(V1) as lease:
        answer = await lease.client.chat({"model": lease.model, "messages": HELLO})
        assert answer["choices"][0]["message"]["content"].startswith(V1)
    order = [path.split("/")[-1] for path in second.paths("/v1")]
    assert order == ["models", "load_lora_adapter", *["completions"] * 3, "completions"]
    assert probed(second) == ["base", V1, "base"]


async def test_an_engine_that_comes_up_while_a_version_goes_live_gets_it_before_it_is_asked(
    slot, engine, second
):
    slot.mark_down(slot.clients[1], "restarting")
    await slot.publish(V1)  # without the second
    await slot.restore(slot.clients[1])  # which gets what is live now: nothing
    slot.move(V1)
    answers = await asyncio.gather(*(ask(slot) for _ in range(20)))
    assert all(answer.startswith(V1) for answer in answers)
    await wait_for(lambda: slot.engines()[1]["reason"] is None)
    assert list(second.adapters) == [V1]


async def test_a_request_that_meets_a_dead_engine_takes_only_that_one_out(slot, engine, second):
    await go_live(slot, V1)
    second.stop()
    failed = 0
    for number in range(60):
        try:
            name = partial(str, number)  # both are asked in turn
            async with slot.lease(V1, affinity=name) as lease:
                await lease.client.chat({"model": lease.model, "messages": HELLO})
        except EngineUnavailableError:
            failed += 1
    assert 1 <= failed < 10  # until a look at it has found it dead, a few ms later
    assert "does not answer" in slot.engines()[1]["reason"]
    assert slot.not_ready() == []


async def test_a_version_that_was_asked_for_by_name_stays_on_the_engine_that_has_it(
    slot, engine, second
):
    for _ in range(3):
        await ask(slot, V3)
    assert len(engine.adapters) + len(second.adapters) == 1


async def test_passing_weights_answer_on_every_engine(slot, engine, second, tmp_path):
    await slot.load_ephemeral("denizen-000007-step-03", tmp_path)
    assert list(engine.adapters) == list(second.adapters) == ["denizen-000007-step-03"]


async def test_no_engine_at_all_is_unavailable(make_slot):
    slot = make_slot()
    with pytest.raises(EngineUnavailableError, match="has not answered yet"):
        await slot.publish(V1)


def slots(num: int) -> list[EngineSlots]:
    """Return engines that are never asked."""
    clients = [PolicyClient(f"http://engine-{number}:8000") for number in range(num)]
    return [EngineSlots(one, max_resident=4, keep=lambda _: Keep.ON_DEMAND) for one in clients]


def test_a_conversation_stays_with_its_engine_and_many_are_spread():
    engines = slots(4)
    own = {str(number): choose(engines, str(number)) for number in range(400)}
    assert all(choose(engines, name) is engine for name, engine in own.items())
    # 100 expected on each, standard deviation 8.7
    assert all(60 < count < 140 for count in Counter(map(id, own.values())).values())


def test_when_an_engine_goes_only_its_conversations_move():
    engines = slots(4)
    own = {str(number): choose(engines, str(number)) for number in range(200)}
    left = engines[:3]
    assert all(choose(left, name) is engine for name, engine in own.items() if engine in left)


def test_an_engine_that_is_clearly_busier_loses_its_conversation_for_now():
    engines = slots(2)
    own = choose(engines, "a session")
    other = next(engine for engine in engines if engine is not own)
    for _ in range(BUSIER_BY):
        own.hold("base")
    assert choose(engines, "a session") is own
    own.hold("base")
    assert choose(engines, "a session") is other
    own.release("base")
    assert choose(engines, "a session") is own


def test_without_a_conversation_the_least_busy_engine_is_chosen():
    engines = slots(3)
    for number, engine in enumerate(engines):
        for _ in range(3 - number):
            engine.hold("base")
    assert choose(engines, None) is engines[2]


async def test_requests_of_one_conversation_reach_one_engine(slot):
    await go_live(slot, V1)
    asked = set()
    for _ in range(10):
        async with slot.lease(V1, affinity=lambda: "ep-1") as lease:
            asked.add(lease.client)
    assert len(asked) == 1


async def test_going_on_to_the_next_version_keeps_every_engine_within_its_places(
    make_slot, engine, second
):
    slot = make_slot(engine, second, max_resident=2)
    await slot.reload_after_restart()
    for version in (V1, V2, V3, V1, V2):
        await go_live(slot, version)
        assert (await ask(slot)).startswith(version)
    assert engine.adapters.most_held == second.adapters.most_held == 2
