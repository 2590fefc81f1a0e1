import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from agent import engine as engine_module
from agent import policy as policy_module
from agent.engine import EngineConfig, VllmProcess
from agent.errors import EngineStartError
from agent.policy import PolicyClient

ROOT = Path(__file__).parents[2]


class FakeVllm(VllmProcess):
    """The process under test, with the fake engine in vLLM's place."""

    program: tuple[str, ...] = ("-m", "tests.fake_engine", "--port", "{port}")

    def _command(self) -> list[str]:
        port = self.url.rsplit(":", 1)[1]
        return [sys.executable, *(word.format(port=port) for word in self.program)]


@pytest.fixture
def model(tmp_path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    return tmp_path / "model"


@pytest.fixture
async def make(model, tmp_path, monkeypatch) -> AsyncIterator[Callable[..., FakeVllm]]:
    monkeypatch.chdir(ROOT)
    made: list[FakeVllm] = []

    def start(program: tuple[str, ...] | None = None, **options) -> FakeVllm:
        engine = FakeVllm(EngineConfig(**options), model=model, log_path=tmp_path / "logs/e.log")
        if program is not None:
            engine.program = program
        made.append(engine)
        return engine

    yield start
    for engine in made:
        await engine.stop()


def script(code: str) -> tuple[str, ...]:
    return ("-c", code.replace("{", "{{").replace("}", "}}"))


def pid_of_child(engine: VllmProcess) -> int:
    assert engine._leash is not None
    listed = subprocess.run(
        ["pgrep", "-P", str(engine._leash.pid)], capture_output=True, text=True, check=True
    )
    return int(listed.stdout)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_started_engine_answers_with_its_key_only(make):
    said: list[str] = []
    engine = make()
    await engine.start(said.append)
    async with PolicyClient(engine.url, engine.api_key) as client:
        assert await client.models() == ["base"]
    async with PolicyClient(engine.url, "a guess") as client:
        with pytest.raises(Exception, match="key"):
            await client.models()
    assert "ready" in said[-1]


async def test_the_key_is_neither_on_the_command_line_nor_in_the_log(make, tmp_path):
    engine = make()
    await engine.start(str)
    listed = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True).stdout
    assert engine.url.rsplit(":", 1)[1] in listed
    assert engine.api_key not in listed
    await engine.stop()
    assert engine.api_key not in (tmp_path / "logs/e.log").read_text(encoding="utf-8")


async def test_stopping_is_quick_and_leaves_no_process(make):
    engine = make()
    await engine.start(str)
    child = pid_of_child(engine)
    began = time.monotonic()
    await engine.stop()
    assert time.monotonic() - began < 10.0
    assert not is_alive(child)
    assert not engine.is_running
    await engine.stop()  # twice is harmless


async def test_an_engine_that_dies_while_starting_shows_its_last_lines(make):
    engine = make(script("print('first line'); print('torch.OutOfMemoryError: out of memory')"))
    with pytest.raises(EngineStartError) as caught:
        await engine.start(str)
    assert "ended with status 0" in caught.value.message
    assert "out of memory" in caught.value.message
    assert "engine.kv_cache_gib" in caught.value.message
    assert engine.tail() == ["first line", "torch.OutOfMemoryError: out of memory"]


async def test_an_engine_that_never_gets_healthy_is_stopped_after_the_time_out(make):
    engine = make(script("import time; time.sleep(60)"), start_timeout_s=0.5)
    with pytest.raises(EngineStartError, match="not healthy after"):
        await engine.start(str)
    assert not engine.is_running


async def test_cancelling_a_start_leaves_no_process(make):
    engine = make(script("import time; time.sleep(60)"))
    starting = asyncio.create_task(engine.start(str))
    while not engine.is_running:
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not engine.is_running


async def test_a_model_folder_that_is_none_is_refused_before_anything_starts(tmp_path):
    engine = VllmProcess(EngineConfig(), model=tmp_path, log_path=tmp_path / "log")
    with pytest.raises(EngineStartError, match=r"engine\.model"):
        await engine.start(str)


async def test_without_the_plugin_no_engine_starts(make, monkeypatch):
    monkeypatch.setattr(engine_module, "entry_points", lambda group: [])
    with pytest.raises(EngineStartError, match="denizen_cpu_lora"):
        await make().start(str)


async def test_without_vllm_the_error_says_what_to_do(make, monkeypatch):
    monkeypatch.setattr(engine_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineStartError, match="--engine-url"):
        await make().start(str)


async def test_a_crashed_engine_is_started_again_at_the_same_address(make, monkeypatch):
    monkeypatch.setattr(engine_module, "FIRST_BACKOFF_S", 0.01)
    engine, events = make(), asyncio.Queue()

    async def on_ready() -> None:
        await events.put("ready")

    async def on_down(reason: str) -> None:
        await events.put(reason)

    supervising = asyncio.create_task(engine.supervise(on_ready, on_down, str))
    assert await asyncio.wait_for(events.get(), 20) == "ready"
    url = engine.url
    os.kill(pid_of_child(engine), signal.SIGKILL)
    assert await asyncio.wait_for(events.get(), 20) == "vLLM ended with status 137"
    assert await asyncio.wait_for(events.get(), 20) == "ready"
    async with PolicyClient(url, engine.api_key) as client:
        assert await client.health()
    supervising.cancel()
    with pytest.raises(asyncio.CancelledError):
        await supervising
    assert not engine.is_running


async def test_an_engine_that_hangs_is_started_again(make, monkeypatch):
    monkeypatch.setattr(engine_module, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(engine_module, "PROGRESS_INTERVAL_S", 0.05)
    monkeypatch.setattr(engine_module, "PROGRESS_TIMEOUT_S", 0.5)
    monkeypatch.setattr(engine_module, "STOP_GRACE_S", 0.2)
    monkeypatch.setattr(policy_module, "HEALTH_TIMEOUT_S", 1.0)
    engine, events = make(), asyncio.Queue()

    async def on_ready() -> None:
        await events.put("ready")

    async def on_down(reason: str) -> None:
        await events.put(reason)

    supervising = asyncio.create_task(engine.supervise(on_ready, on_down, str))
    assert await asyncio.wait_for(events.get(), 20) == "ready"
    await asyncio.sleep(0.3)  # several looks at an engine that is well
    assert events.empty()
    os.kill(pid_of_child(engine), signal.SIGSTOP)
    assert "vLLM" in await asyncio.wait_for(events.get(), 20)
    assert await asyncio.wait_for(events.get(), 30) == "ready"
    supervising.cancel()
    with pytest.raises(asyncio.CancelledError):
        await supervising


async def test_the_pause_before_a_start_doubles_up_to_its_limit(make, monkeypatch):
    pauses: list[float] = []

    async def no_sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            raise asyncio.CancelledError

    async def fail(progress) -> None:
        raise EngineStartError("it cannot start")

    reasons: list[str] = []

    async def on_down(reason: str) -> None:
        reasons.append(reason)

    engine = make()
    monkeypatch.setattr(engine, "start", fail)
    monkeypatch.setattr(engine_module.asyncio, "sleep", no_sleep)
    with pytest.raises(asyncio.CancelledError):
        await engine.supervise(lambda: pytest.fail("it is not ready"), on_down, str)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert reasons == ["it cannot start"] * 7


async def test_the_log_is_appended_to_and_bounded(make, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "LOG_LIMIT_BYTES", 100)
    for letter in "abc":
        with pytest.raises(EngineStartError):
            await make(script(f"print('{letter}' * 80)")).start(str)
    logs = tmp_path / "logs"
    assert (logs / "e.log.1").read_text(encoding="utf-8").split() == ["a" * 80, "b" * 80]
    assert (logs / "e.log").read_text(encoding="utf-8").split() == ["c" * 80]


async def test_output_without_line_ends_is_kept_and_bounded(make, tmp_path):
    engine = make(script("import sys; sys.stdout.write('x' * 300_000)"))
    with pytest.raises(EngineStartError):
        await engine.start(str)
    assert (tmp_path / "logs/e.log").stat().st_size == 300_000


def test_vllm_gets_what_the_settings_say(model, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "something_else")
    config = EngineConfig(max_loras=3, max_lora_rank=32, extra_args=("--seed", "7"))
    engine = VllmProcess(config, model=model, log_path=tmp_path / "log")
    command, environment = engine._command(), engine._environment()
    assert command[command.index("--max-loras") + 1] == "3"
    assert command[command.index("--max-lora-rank") + 1] == "32"
    assert command[command.index("--served-model-name") + 1] == "base"
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[-2:] == ["--seed", "7"]
    assert engine.api_key not in command
    assert environment["VLLM_API_KEY"] == engine.api_key
    assert environment["VLLM_PLUGINS"] == "something_else,denizen_cpu_lora"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert environment["HF_HUB_OFFLINE"] == "1"


def test_two_engines_have_different_keys(model, tmp_path):
    keys = {
        VllmProcess(EngineConfig(), model=model, log_path=tmp_path / "log").api_key for _ in "ab"
    }
    assert len(keys) == 2


def test_an_unknown_setting_is_named():
    with pytest.raises(ValidationError, match="max_lora\n"):
        EngineConfig(max_lora=3)


def test_the_fake_engine_as_a_program_says_its_port():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fake_engine"], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["port"] > 0
    finally:
        process.kill()
        process.communicate()
