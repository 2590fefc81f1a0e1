"""Servers by URL: each watched by itself; gone, hung, restarted and slow told apart."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from agent import attached, policy, repair
from agent.attached import base_root, watch
from agent.errors import EngineUnavailableError
from agent.policy import PolicyClient
from memory.errors import ConfigError
from tests.agent.slots import HELLO, V1, V2, ask, go_live, wait_for
from tests.fake_engine import FakeEngine

HANG_FOUND_S = attached.MAX_STALLS * (attached.PROGRESS_INTERVAL_S + attached.PROGRESS_TIMEOUT_S)
"""As shipped; the tests look more often."""


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(attached, "POLL_S", 0.05)
    monkeypatch.setattr(attached, "PROGRESS_INTERVAL_S", 0.05)
    monkeypatch.setattr(attached, "PROGRESS_TIMEOUT_S", 0.3)
    monkeypatch.setattr(policy, "HEALTH_TIMEOUT_S", 0.5)
    monkeypatch.setattr(repair, "REPAIR_PAUSE_S", 0.05)


@asynccontextmanager
async def watched(slot) -> AsyncIterator[list[str]]:
    """Watch the slot's engines and hand out the reasons why one was taken for down."""
    reasons: list[str] = []

    async def on_down(client: PolicyClient, reason: str) -> None:
        reasons.append(reason)
        slot.mark_down(client, reason)

    task = asyncio.create_task(watch(slot.clients, slot.restore, on_down))
    try:
        yield reasons
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def live(make_slot, engine):
    """Serve the first version from one engine."""
    slot = make_slot()
    await slot.reload_after_restart()
    await go_live(slot, V1)
    return slot


def is_ready(slot) -> Callable[[], bool]:
    return lambda: slot.not_ready() == []


async def test_a_request_under_way_on_an_engine_that_hangs_is_ended(live, engine):
    async with watched(live) as reasons:
        engine.control(hangs=True)
        with pytest.raises(EngineUnavailableError):
            await asyncio.wait_for(ask(live), 10)
        assert "computes nothing" in reasons[0]


def test_a_hang_is_found_within_60_s():
    assert HANG_FOUND_S < 60 - policy.HEALTH_TIMEOUT_S


async def test_an_engine_that_hangs_while_its_health_answers_is_found_and_comes_back(live, engine):
    async with watched(live) as reasons:
        engine.control(hangs=True)
        await wait_for(lambda: bool(reasons))
        assert reasons == ["it answers its health check but computes nothing"]
        with pytest.raises(EngineUnavailableError, match="computes nothing"):
            await ask(live)
        await asyncio.sleep(0.3)
        assert "computes nothing" in live.not_ready()[0]  # health alone does not bring it back
        engine.reset()
        await wait_for(is_ready(live))
        assert (await ask(live)).startswith(V1)


async def test_an_engine_that_is_slow_but_moves_stays_ready(live, engine):
    engine.control(seconds_per_token=0.1)  # the look's own answer never comes in time
    stop = asyncio.Event()

    async def chat() -> None:
        while not stop.is_set():
            await ask(live)

    chats = [asyncio.create_task(chat()) for _ in range(4)]
    async with watched(live) as reasons:
        await asyncio.sleep(2.0)  # several looks
        assert reasons == []
        assert live.not_ready() == []
        stop.set()
        await asyncio.gather(*chats)


async def test_an_engine_that_fails_at_once_does_not_hang(live, engine):
    engine.control(http_error=500)
    async with watched(live) as reasons:
        await asyncio.sleep(0.5)  # several looks
        assert reasons == []
        assert live.not_ready() == []


async def test_one_look_without_a_token_ends_nothing(live, engine, monkeypatch):
    looks: list[bool] = []
    makes_progress = PolicyClient.makes_progress

    async def every_second_fails(self, model: str, timeout_s: float) -> bool:
        looks.append(len(looks) % 2 == 1 and await makes_progress(self, model, timeout_s))
        if not looks[-1]:
            await asyncio.sleep(timeout_s)
        return looks[-1]

    monkeypatch.setattr(PolicyClient, "makes_progress", every_second_fails)
    async with watched(live) as reasons:
        await wait_for(lambda: looks.count(False) > 4)
        assert reasons == []


async def test_one_health_check_that_fails_ends_nothing_and_two_do(live, engine, monkeypatch):
    answers = iter([True, False, True, False, True, False, False])
    seen: list[bool] = []

    async def health(self) -> bool:
        seen.append(next(answers, True))
        return seen[-1]

    monkeypatch.setattr(PolicyClient, "health", health)
    monkeypatch.setattr(attached, "PROGRESS_INTERVAL_S", 60.0)
    async with watched(live) as reasons:
        await wait_for(lambda: len(seen) >= 6)
        assert reasons == []
        await wait_for(lambda: len(seen) >= 9)
        assert reasons == ["it does not answer"]
        await wait_for(is_ready(live))


async def test_an_engine_that_restarts_empty_between_two_looks_gets_its_adapters_again(
    live, engine
):
    async with watched(live) as reasons:
        await asyncio.to_thread(lambda: (engine.stop(), engine.start()))
        await wait_for(lambda: V1 in engine.adapters)
        await wait_for(is_ready(live))
        assert (await ask(live)).startswith(V1)
    assert reasons in ([], ["it does not answer"])


async def test_a_dead_engine_is_found_and_comes_back_with_the_live_version(live, engine):
    async with watched(live) as reasons:
        engine.stop()
        await wait_for(lambda: reasons == ["it does not answer"])
        with pytest.raises(EngineUnavailableError, match="does not answer"):
            await ask(live)
        await asyncio.to_thread(engine.start)
        await wait_for(is_ready(live))
        assert (await ask(live)).startswith(V1)
        assert list(engine.adapters) == [V1]


async def test_one_engine_that_is_gone_does_not_take_the_other_down(make_slot, engine, second):
    slot = make_slot(engine, second)
    async with watched(slot) as reasons:
        await wait_for(lambda: all(one["reason"] is None for one in slot.engines()))
        await go_live(slot, V1)
        second.stop()
        await wait_for(lambda: bool(reasons))
        assert slot.not_ready() == []
        assert [one["is_up"] for one in slot.engines()] == [True, False]
        await go_live(slot, V2)  # a version can go live without it
        answers = await asyncio.gather(*(ask(slot) for _ in range(20)))
        assert all(answer.startswith(V2) for answer in answers)
        await asyncio.to_thread(second.start)
        await wait_for(lambda: all(one["reason"] is None for one in slot.engines()))
        assert V2 in second.adapters


async def test_one_engine_that_hangs_does_not_delay_looking_at_the_other(make_slot, engine, second):
    slot = make_slot(engine, second)
    second.control(hangs=True)
    async with watched(slot) as reasons:
        await wait_for(lambda: slot.engines()[0]["reason"] is None)
        await wait_for(lambda: bool(reasons))
        assert slot.not_ready() == []
        await go_live(slot, V1)
        assert (await ask(slot)).startswith(V1)


async def test_a_request_in_flight_ends_on_its_version_while_the_watch_goes_on(live, engine):
    engine.control(chunk_delay_s=0.05)
    async with watched(live), live.lease(V1) as lease:
        events = lease.client.stream({"model": lease.model, "messages": HELLO, "stream": True})
        assert len([event async for event in events]) > 3


async def test_the_base_model_is_that_of_whichever_engine_answers(engine):
    engine.stop()
    with FakeEngine(root="models/x") as other:
        async with PolicyClient(engine.url) as dead, PolicyClient(other.url) as alive:
            assert await base_root([dead, alive], 5.0) == "models/x"


async def test_an_engine_that_answers_later_is_waited_for(engine):
    engine.stop()
    starting = threading.Timer(0.3, engine.start)
    starting.start()
    async with PolicyClient(engine.url) as client:
        assert await base_root([client], 10.0) == "fake/base"
    starting.join()


async def test_no_engine_in_time_is_an_error_that_says_so(engine):
    engine.stop()
    began = time.monotonic()
    async with PolicyClient(engine.url) as client:
        with pytest.raises(EngineUnavailableError, match="does not answer"):
            await base_root([client], 0.1)
    assert time.monotonic() - began < 5.0


async def test_an_engine_that_does_not_name_its_model_asks_for_the_setting(engine):
    engine.root = None
    async with PolicyClient(engine.url) as client:
        with pytest.raises(ConfigError, match=r"engine\.model"):
            await base_root([client], 1.0)
