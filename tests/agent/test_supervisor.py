import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from agent import engine as engine_module
from agent import policy, supervisor
from agent.diagnosis import ANSWERS_NOTHING, COMPUTES_NOTHING
from agent.engine import VllmProcess
from agent.errors import EngineStartError
from agent.policy import PolicyClient
from agent.supervisor import supervise
from tests.agent.stand_in import Make, pid_of_child

Events = asyncio.Queue[str]


@asynccontextmanager
async def supervised(engine: VllmProcess) -> AsyncIterator[Events]:
    """Supervise, and hand out what is told: "ready", or the reason of an end."""
    events: Events = asyncio.Queue()

    async def on_ready() -> None:
        await events.put("ready")

    supervising = asyncio.create_task(supervise(engine, on_ready, events.put, str))
    try:
        yield events
    finally:
        supervising.cancel()
        with suppress(asyncio.CancelledError):
            await supervising
        assert not engine.is_running


async def told(events: Events) -> str:
    return await asyncio.wait_for(events.get(), 30)


async def control(engine: VllmProcess, **switches: object) -> None:
    async with (
        PolicyClient(engine.url, engine.api_key) as client,
        client._request("POST", "/control", switches),
    ):
        pass


@pytest.fixture
def quick(monkeypatch) -> None:
    """Look every 50 ms, and call it a hang after a second."""
    monkeypatch.setattr(supervisor, "LOOK_INTERVAL_S", 0.05)
    monkeypatch.setattr(supervisor, "LOOK_TIMEOUT_S", 0.3)
    monkeypatch.setattr(supervisor, "HANG_AFTER_S", 1.0)
    monkeypatch.setattr(policy, "HEALTH_TIMEOUT_S", 0.2)
    monkeypatch.setattr(engine_module, "STOP_GRACE_S", 0.2)


def found_after_s(look_s: float) -> float:
    """Return when looks of this length find an engine that hangs right after a good one."""
    elapsed_s = 0.0
    while elapsed_s < supervisor.HANG_AFTER_S:
        elapsed_s += supervisor.LOOK_INTERVAL_S + look_s
    return elapsed_s + policy.HEALTH_TIMEOUT_S  # which of the two hangs it is


def test_a_hang_is_found_within_60_s_but_not_by_one_look():
    longest_s = supervisor.LOOK_TIMEOUT_S + policy.HEALTH_TIMEOUT_S  # the counters do not answer
    for look_s in (policy.HEALTH_TIMEOUT_S, supervisor.LOOK_TIMEOUT_S, longest_s):
        assert found_after_s(look_s) <= 60.0
    assert supervisor.LOOK_INTERVAL_S + longest_s < supervisor.HANG_AFTER_S


async def test_a_crashed_engine_is_started_again_at_once_at_the_same_address(make: Make):
    engine = make()
    async with supervised(engine) as events:
        assert await told(events) == "ready"
        url = engine.url
        killed_at = time.monotonic()
        os.kill(pid_of_child(engine), signal.SIGKILL)
        assert "killed (SIGKILL)" in await told(events)
        assert time.monotonic() - killed_at < 1.0
        assert await told(events) == "ready"
        async with PolicyClient(url, engine.api_key) as client:
            assert await client.health()


@pytest.mark.usefixtures("quick")
async def test_an_engine_that_hangs_while_its_adapters_load_is_found_too(make: Make):
    engine = make()
    reasons: Events = asyncio.Queue()

    async def load() -> None:
        await control(engine, hangs=True)
        await asyncio.Event().wait()

    supervising = asyncio.create_task(supervise(engine, load, reasons.put, str))
    assert await told(reasons) == COMPUTES_NOTHING
    supervising.cancel()
    with suppress(asyncio.CancelledError):
        await supervising


@pytest.mark.usefixtures("quick")
async def test_an_engine_that_computes_nothing_is_found_killed_and_started_again(make: Make):
    engine = make()
    async with supervised(engine) as events:
        assert await told(events) == "ready"
        hung = pid_of_child(engine)
        await control(engine, hangs=True)  # its health check goes on answering
        began = time.monotonic()
        assert await told(events) == COMPUTES_NOTHING
        assert 1.0 <= time.monotonic() - began < 3.0
        assert await told(events) == "ready"
        assert pid_of_child(engine) != hung


@pytest.mark.usefixtures("quick")
async def test_a_frozen_engine_is_found_killed_and_started_again(make: Make):
    engine = make()
    async with supervised(engine) as events:
        assert await told(events) == "ready"
        os.kill(pid_of_child(engine), signal.SIGSTOP)
        assert await told(events) == ANSWERS_NOTHING
        assert await told(events) == "ready"


@pytest.mark.usefixtures("quick")
async def test_an_engine_that_is_slow_but_moves_is_left_alone(make: Make):
    engine = make()
    async with supervised(engine) as events:
        assert await told(events) == "ready"
        await control(engine, delay_s=0.6)  # each look at it times out
        async with PolicyClient(engine.url, engine.api_key) as client:
            began = time.monotonic()
            while time.monotonic() - began < 2.5:  # tokens of others come all the while
                await client.prompt_logprobs("base", [1, 2])
                await asyncio.sleep(0.05)
        assert events.empty()


@pytest.mark.usefixtures("quick")
async def test_looks_that_fail_for_a_moment_end_nothing(make: Make):
    engine = make()
    async with supervised(engine) as events:
        assert await told(events) == "ready"
        await control(engine, http_error=500)
        await asyncio.sleep(0.5)
        await control(engine, http_error=None)
        await asyncio.sleep(1.0)
        assert events.empty()


class Script:
    """An engine whose runs last as long as it is told, on a clock of its own."""

    url, api_key, is_running = "http://127.0.0.1:1", "", True

    def __init__(self, *runs_s: float | None) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self._runs_s = list(runs_s)  # None: it does not start

    async def start(self, progress: Callable[[str], None]) -> None:
        if not self._runs_s:
            raise asyncio.CancelledError
        if self._runs_s[0] is None:
            self._runs_s.pop(0)
            raise EngineStartError("it cannot start\nits last line")

    async def wait_ended(self) -> str:
        self.now_s += self._runs_s.pop(0) or 0.0
        return "it ended"

    async def stop(self) -> None:
        pass

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


async def pauses_of(monkeypatch: pytest.MonkeyPatch, *runs_s: float | None) -> list[float]:
    engine = Script(*runs_s)
    monkeypatch.setattr(supervisor.asyncio, "sleep", engine.sleep)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: engine.now_s)
    reasons: list[str] = []

    async def ignore(reason: str = "") -> None:
        reasons.append(reason)

    with pytest.raises(asyncio.CancelledError):
        await supervise(engine, ignore, ignore, str)
    assert len([reason for reason in reasons if reason]) == len(runs_s)
    return engine.pauses


async def test_the_first_restart_comes_at_once_and_the_pause_doubles_up_to_its_limit(monkeypatch):
    pauses = await pauses_of(monkeypatch, *[None] * 8)
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


async def test_an_engine_that_dies_soon_after_each_start_backs_off_too(monkeypatch):
    assert await pauses_of(monkeypatch, 3.0, 3.0, 3.0, 3.0) == [0.0, 1.0, 2.0, 4.0]


async def test_after_a_run_that_was_well_the_pauses_begin_anew(monkeypatch):
    assert await pauses_of(monkeypatch, 3.0, 3.0, 500.0, 3.0) == [0.0, 1.0, 0.0, 1.0]
