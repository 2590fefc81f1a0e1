"""vLLM as a child process: started, watched, started again, and never left behind.

Where the engine runs is all this module knows. It does not know which adapter is live nor who asks;
who needs to act when the engine comes or goes passes two callbacks to ``VllmProcess.supervise``.
"""

import asyncio
import contextlib
import importlib.util
import logging
import os
import secrets
import socket
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.errors import (
    EngineError,
    EngineRejectedError,
    EngineStartError,
    EngineUnavailableError,
)
from agent.policy import PolicyClient

logger = logging.getLogger(__name__)

PLUGIN = "denizen_cpu_lora"
LOG_LIMIT_BYTES = 20_000_000
TAIL_LINES = 40
STOP_GRACE_S = 6.0
"""From SIGTERM to SIGKILL: an idle engine ends within 2 s."""
PROGRESS_INTERVAL_S = 15.0
PROGRESS_TIMEOUT_S = 30.0
"""An engine that hangs is found within the sum of both and two ``HEALTH_TIMEOUT_S``: 55 s."""
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 30.0

Progress = Callable[[str], None]


class EngineConfig(BaseModel):
    """Where the engine is, or how to start one. Section ``[engine]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    urls: tuple[str, ...] = ()
    """vLLM servers that run already; empty: start one as a child of the service."""

    api_key: str | None = None
    """Key of the servers in ``urls``. A child gets a random one."""

    model: str | None = None
    """Folder or hub name of the base model; None: the packaged SmolLM2-135M-Instruct."""

    max_loras: int = Field(default=4, ge=2)
    """Adapters in one batch: live, previous, candidate, and the weights in practice."""

    max_lora_rank: int = Field(default=16, ge=1)
    """Largest adapter rank; vLLM's own default. The learner's rank may not exceed it."""

    max_model_len: int = Field(default=2048, ge=128)
    """Tokens of prompt and answer together."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "bfloat16"
    """Arithmetic of the base model; the trainer uses the same."""

    kv_cache_gib: int = Field(default=2, ge=1)
    """Key-value cache on a CPU, in GiB; with 2 all of vLLM takes 4.7 GB (packaged model)."""

    gpu_memory_utilization: float = Field(default=0.6, gt=0.0, le=1.0)
    """Share of a GPU's memory that vLLM takes; the rest is the trainer's."""

    start_timeout_s: float = Field(default=600.0, gt=0.0)
    """From start to healthy; the packaged model takes 30 to 45 s on two cores."""

    extra_args: tuple[str, ...] = ()
    """More arguments for vLLM's server, such as ``--enable-auto-tool-choice``."""


class VllmProcess:
    """One vLLM server on the loopback interface, behind a random key.

    Example:
        ``engine = VllmProcess(config, model=Path("models/smollm2"), log_path=Path("engine.log"))``,
        ``await engine.start(print)``, ``PolicyClient(engine.url, engine.api_key)``,
        ``await engine.stop()``.

    URL and key stay the same over restarts. The process runs under ``agent.leash``, so it dies with
    this one.
    """

    def __init__(self, config: EngineConfig, *, model: Path, log_path: Path) -> None:
        self.config = config
        self.model = model
        self.url = f"http://127.0.0.1:{_free_port()}"
        self.api_key = secrets.token_urlsafe(32)
        self._log = _BoundedLog(log_path)
        self._leash: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists; it may still be starting."""
        return self._leash is not None and self._leash.returncode is None

    def tail(self) -> list[str]:
        """Return the last lines of the engine's output."""
        return list(self._log.tail)

    async def start(self, progress: Progress) -> None:
        """Start the engine and return when it has answered a first request.

        Args:
            progress: told in one line each how far the start is.

        Raises:
            EngineStartError: it did not come up; the message holds its last lines and what to do.
        """
        self._check_startable()
        began = time.monotonic()
        await self._spawn()
        try:
            async with PolicyClient(self.url, self.api_key) as client:
                await self._until_healthy(client, began, progress)
                progress("vLLM is up; warming up")
                await self._warm_up(client)
        except BaseException:
            await self.stop()
            raise
        progress(f"vLLM is ready after {time.monotonic() - began:.0f} s")

    async def stop(self) -> None:
        """End the engine and everything it started, within ``STOP_GRACE_S`` and a second."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
        if self._leash is not None:
            await self._leash.wait()
        if self._reader is not None:
            await self._reader
            self._reader = None

    async def wait_exited(self) -> str:
        """Return, when the process has ended, how it ended."""
        if self._leash is None:
            return "vLLM was not started"
        return f"vLLM ended with status {await self._leash.wait()}"

    async def supervise(
        self,
        on_ready: Callable[[], Awaitable[None]],
        on_down: Callable[[str], Awaitable[None]],
        progress: Progress = logger.info,
    ) -> None:
        """Keep the engine running until cancelled, and stop it then.

        Starts it when it does not run, and anew when it has ended or hangs. After each start
        ``on_ready`` is awaited, after each end or failed start ``on_down(reason)``; then follows a
        pause of 1, 2, 4, … at most 30 s before the next start.
        """
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                try:
                    if not self.is_running:
                        await self.start(progress)
                except EngineStartError as error:
                    reason = error.message
                else:
                    backoff_s = FIRST_BACKOFF_S
                    await on_ready()
                    reason = await self._until_useless()
                await on_down(reason)
                await self.stop()
                logger.error("%s; next start in %.0f s", reason, backoff_s)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
        finally:
            await self.stop()

    async def _until_useless(self) -> str:
        """Return, when the process has ended or no longer computes, what is the matter."""
        exited = asyncio.create_task(self.wait_exited())
        try:
            async with PolicyClient(self.url, self.api_key) as client:
                while not (await asyncio.wait({exited}, timeout=PROGRESS_INTERVAL_S))[0]:
                    if not await client.makes_progress("base", PROGRESS_TIMEOUT_S):
                        break
            if exited.done() or not self.is_running:
                return await exited
            return "vLLM runs but computes nothing"
        finally:
            exited.cancel()

    def _check_startable(self) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise EngineStartError(
                "vLLM is not installed: run make, or name a server with --engine-url"
            )
        if isinstance(self.model, Path) and not (self.model / "config.json").is_file():
            raise EngineStartError(f"{self.model} is no model folder: set engine.model to one")
        names = {entry.name for entry in entry_points(group="vllm.general_plugins")}
        if PLUGIN not in names:
            raise EngineStartError(
                f"vLLM would not find the plugin {PLUGIN}, without which adapters answer wrongly "
                "on a CPU: install this project (pip install --no-deps -e .)"
            )

    async def _spawn(self) -> None:
        read_fd, self._pipe = os.pipe()
        try:
            self._leash = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agent.leash", "--fd", str(read_fd)),
                *("--grace", str(STOP_GRACE_S), "--", *self._command()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment(),
                pass_fds=(read_fd,),
                start_new_session=True,  # Ctrl-C ends the service first, which then ends the engine
            )
        finally:
            os.close(read_fd)
        assert self._leash.stdout is not None
        self._reader = asyncio.create_task(self._log.follow(self._leash.stdout))

    def _command(self) -> list[str]:
        config = self.config
        # fmt: off
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--host", "127.0.0.1", "--port", self.url.rsplit(":", 1)[1],
            "--model", str(self.model), "--served-model-name", "base",
            "--dtype", config.dtype, "--max-model-len", str(config.max_model_len),
            "--enable-lora", "--max-loras", str(config.max_loras),
            "--max-lora-rank", str(config.max_lora_rank),
            "--disable-uvicorn-access-log",
        ]
        # fmt: on
        if _is_cpu_build():
            command += ["--enforce-eager"]
        else:
            command += ["--gpu-memory-utilization", str(config.gpu_memory_utilization)]
        return [*command, *config.extra_args]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        environment |= {
            "VLLM_API_KEY": self.api_key,
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(self.config.kv_cache_gib),
            "PYTHONUNBUFFERED": "1",
        }
        if isinstance(self.model, Path):
            environment["HF_HUB_OFFLINE"] = "1"
        if "VLLM_PLUGINS" in environment:  # an allow-list, which must let ours in
            environment["VLLM_PLUGINS"] += f",{PLUGIN}"
        return environment

    async def _until_healthy(self, client: PolicyClient, began: float, progress: Progress) -> None:
        last_report = began
        while not await client.health():
            waited_s = time.monotonic() - began
            if not self.is_running:
                await self.stop()  # reads the output to its end
                raise self._start_error(f"{await self.wait_exited()} while starting")
            if waited_s > self.config.start_timeout_s:
                raise self._start_error(f"vLLM was not healthy after {waited_s:.0f} s")
            if time.monotonic() - last_report >= 5.0:
                last_report = time.monotonic()
                progress(f"starting vLLM, {waited_s:.0f} s")
            await asyncio.sleep(0.25)

    async def _warm_up(self, client: PolicyClient) -> None:
        """Ask once, since the first answer takes up to 18 s."""
        hello = [{"role": "user", "content": "Hello"}]
        try:
            await client.chat(
                {"model": "base", "messages": hello, "max_tokens": 2, "logprobs": True}
            )
        except (EngineError, EngineRejectedError, EngineUnavailableError) as error:
            raise self._start_error(f"vLLM's first answer failed: {error}") from error

    def _start_error(self, what: str) -> EngineStartError:
        lines = "\n".join(self.tail())
        return EngineStartError(
            f"{what}. {_advice(lines)}\nLast lines of {self._log.path}:\n{lines}"
        )


class _BoundedLog:
    """Appends output to a file of ``LOG_LIMIT_BYTES``; the full one before it is kept as ``.1``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Copy the stream until it ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        pending = b""
        while chunk := await stream.read(65536):
            with contextlib.suppress(OSError):  # a full disk; the pipe must be read all the same
                self._append(chunk)
            *lines, pending = (pending + chunk).split(b"\n")
            self.tail.extend(line.decode(errors="replace")[:500] for line in lines)
            pending = pending[-65536:]

    def _append(self, chunk: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size > LOG_LIMIT_BYTES:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        with self.path.open("ab") as file:
            file.write(chunk)


def _advice(log: str) -> str:
    """Say what to do about the commonest reasons why vLLM does not start."""
    lowered = log.lower()
    if "address already in use" in lowered:
        return "Its port was taken by another program meanwhile; start again."
    if any(
        word in lowered
        for word in ("out of memory", "memoryerror", "no available memory", "kv cache")
    ):
        return (
            "It has too little memory: lower engine.kv_cache_gib, engine.max_model_len or "
            "engine.gpu_memory_utilization, or choose a smaller model."
        )
    if any(
        word in lowered
        for word in ("config.json", "not a valid model", "repository", "safetensors")
    ):
        return "It cannot read the model: engine.model must be a complete model folder or hub name."
    if "unrecognized arguments" in lowered:
        return "It does not know an argument: see engine.extra_args."
    return "See its log."


def _is_cpu_build() -> bool:
    """Whether the installed vLLM is the CPU package, which is distributed as ``vllm-cpu``."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution("vllm-cpu")
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
