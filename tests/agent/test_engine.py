import asyncio
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from agent import engine_log
from agent.engine import EngineConfig, VllmProcess
from agent.errors import EngineStartError
from agent.policy import PolicyClient
from tests.agent.stand_in import Make, is_alive, pid_of_child
from tests.running import REPOSITORY

SLEEPS = "import time; time.sleep(60)"


async def test_a_started_engine_answers_with_its_key_only(make: Make):
    said: list[str] = []
    engine = make()
    await engine.start(said.append)
    async with PolicyClient(engine.url, engine.api_key) as client:
        assert await client.models() == ["base"]
    async with PolicyClient(engine.url, "a guess") as client:
        with pytest.raises(Exception, match="key"):
            await client.models()
    assert "ready" in said[-1]


async def test_the_key_is_neither_on_the_command_line_nor_in_the_log(make: Make, tmp_path):
    engine = make()
    await engine.start(str)
    listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout
    assert str(engine.port) in listed
    assert engine.api_key not in listed
    await engine.stop()
    assert engine.api_key not in (tmp_path / "logs/e.log").read_text(encoding="utf-8")


async def test_stopping_is_quick_and_leaves_no_process(make: Make):
    engine = make()
    await engine.start(str)
    child = pid_of_child(engine)
    began = time.monotonic()
    await engine.stop()
    assert time.monotonic() - began < 10.0
    assert not is_alive(child)
    assert not engine.is_running
    await engine.stop()  # twice is harmless


async def test_an_engine_that_dies_while_starting_shows_why_and_its_last_lines(
    make: Make, tmp_path
):
    engine = make("print('first line'); raise MemoryError('of 4 GB')")
    with pytest.raises(EngineStartError) as caught:
        await engine.start(str)
    first, where, *rest = caught.value.message.splitlines()
    assert first.startswith("vLLM ran out of memory (MemoryError: of 4 GB); lower engine.kv_cache")
    assert where == f"Last lines of {tmp_path / 'logs/e.log'}:"
    assert rest[0] == "first line"
    assert rest[-1] == "MemoryError: of 4 GB"
    assert engine.tail() == rest


async def test_an_unfinished_last_line_is_shown_too(make: Make):
    engine = make("import sys; sys.stdout.write('no line end')")
    with pytest.raises(EngineStartError, match="no line end"):
        await engine.start(str)


async def test_lines_of_an_earlier_run_do_not_explain_a_later_one(make: Make):
    engine = make("raise MemoryError")
    with pytest.raises(EngineStartError, match="out of memory"):
        await engine.start(str)
    engine.program = ("-c", "raise ValueError('something else')")
    with pytest.raises(EngineStartError) as caught:
        await engine.start(str)
    assert "MemoryError" not in caught.value.message
    assert "crashed with status 1; ValueError: something else" in caught.value.message


async def test_an_engine_that_never_gets_healthy_is_stopped_after_the_time_out(make: Make):
    engine = make(SLEEPS, start_timeout_s=0.5)
    with pytest.raises(EngineStartError, match=r"not ready after engine\.start_timeout_s"):
        await engine.start(str)
    assert not engine.is_running


async def test_an_engine_that_hangs_in_its_first_answer_is_stopped_after_the_time_out(make: Make):
    hangs = """
import sys
from tests.fake_engine import FakeEngine
with FakeEngine(port={port}) as engine:
    engine.control(hangs=True)
    import threading; threading.Event().wait()
"""
    engine = make(hangs, start_timeout_s=3.0)
    said: list[str] = []
    with pytest.raises(EngineStartError, match=r"engine\.start_timeout_s"):
        await engine.start(said.append)
    assert said == ["vLLM is up; warming up"]
    assert not engine.is_running


async def test_a_process_that_cannot_be_started_is_a_failed_start(make: Make, monkeypatch):
    async def full(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    engine = make()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", full)
    with pytest.raises(EngineStartError, match="Cannot allocate memory"):
        await engine.start(print)
    assert not engine.is_running


async def test_cancelling_a_start_leaves_no_process(make: Make):
    engine = make(SLEEPS)
    starting = asyncio.create_task(engine.start(str))
    while not engine.is_running:
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not engine.is_running


async def test_the_end_of_a_run_is_explained_at_once(make: Make):
    engine = make()
    await engine.start(str)
    os.kill(pid_of_child(engine), signal.SIGKILL)
    reason = await asyncio.wait_for(engine.wait_ended(), 2.0)
    assert reason == "vLLM was killed (SIGKILL), and not by the kernel for want of memory"


async def test_the_log_is_appended_to_and_bounded(make: Make, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_log, "LOG_LIMIT_BYTES", 100)
    for letter in "abc":
        with pytest.raises(EngineStartError):
            await make(f"print('{letter}' * 80)").start(str)
    logs = tmp_path / "logs"
    assert (logs / "e.log.1").read_text(encoding="utf-8").split() == ["a" * 80, "b" * 80]
    assert (logs / "e.log").read_text(encoding="utf-8").split() == ["c" * 80]


async def test_output_without_line_ends_is_kept_and_bounded(make: Make, tmp_path):
    engine = make("import sys; sys.stdout.write('x' * 300_000)")
    with pytest.raises(EngineStartError):
        await engine.start(str)
    assert (tmp_path / "logs/e.log").stat().st_size == 300_000
    assert engine.tail() == ["x" * 500]


def test_two_engines_have_different_keys(tmp_path):
    keys = {
        VllmProcess(EngineConfig(), model=tmp_path, log_path=tmp_path / "log").api_key for _ in "ab"
    }
    assert len(keys) == 2


def test_the_fake_engine_as_a_program_says_its_port():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fake_engine"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["port"] > 0
    finally:
        process.kill()
        process.communicate()
