"""vLLM as a child process: started, warmed up, ended, and never left behind.

Where the engine runs is all this module knows. ``vllm_command`` says what it is started with,
``preflight`` what has to be true before, ``diagnosis`` why it ended; ``supervisor`` starts it anew.
"""

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent import vllm_command
from agent.diagnosis import Ending, advise
from agent.engine_config import EngineConfig
from agent.engine_log import EngineLog
from agent.errors import (
    EngineError,
    EngineRejectedError,
    EngineStartError,
    EngineUnavailableError,
)
from agent.machine_memory import num_oom_kills
from agent.policy import PolicyClient

__all__ = ["EngineConfig", "Progress", "VllmProcess"]

SHOWN_LINES = 40
STOP_GRACE_S = 6.0
"""From SIGTERM to SIGKILL: an idle engine ends within 2 s."""

Progress = Callable[[str], None]


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
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.api_key = secrets.token_urlsafe(32)
        self._log = EngineLog(log_path)
        self._leash: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None
        self._reader: asyncio.Task[None] | None = None
        self._oom_kills_before: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists; it may still be starting."""
        return self._leash is not None and self._leash.returncode is None

    def tail(self) -> list[str]:
        """Return the last lines of the engine's output."""
        return list(self._log.lines)[-SHOWN_LINES:]

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        return vllm_command.command_line(self.config, self.model, self.port)

    async def start(self, progress: Progress) -> None:
        """Start the engine and return when it has answered a first request.

        Args:
            progress: told in one line each how far the start is.

        Raises:
            EngineStartError: it did not come up; the message's first line says why and what to do,
                the others are its last ones.
        """
        began = time.monotonic()
        try:
            await self._spawn()
            async with PolicyClient(self.url, self.api_key) as client:
                async with asyncio.timeout(self.config.start_timeout_s):
                    await self._until_healthy(client, began, progress)
                    progress("vLLM is up; warming up")
                    await self._warm_up(client)
        except TimeoutError as error:
            raise await self._start_error(
                f"vLLM was not ready after engine.start_timeout_s, {time.monotonic() - began:.0f} s"
            ) from error
        except OSError as error:  # no memory or descriptors for one more process
            raise await self._start_error(f"vLLM could not be started: {error}") from error
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

    async def wait_ended(self) -> str:
        """Return, when the process has ended, why, in one line."""
        assert self._leash is not None, "vLLM was not started"
        status = await self._leash.wait()
        if self._reader is not None:
            await asyncio.wait({self._reader})  # its last lines say why
        before, now = self._oom_kills_before, num_oom_kills()
        return Ending(
            status=status,
            lines=list(self._log.lines),
            num_oom_kills=None if before is None or now is None else now - before,
        ).reason()

    async def _spawn(self) -> None:
        read_fd, self._pipe = os.pipe()
        self._oom_kills_before = num_oom_kills()
        try:
            self._leash = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "agent.leash", "--fd", str(read_fd)),
                *("--grace", str(STOP_GRACE_S), "--", *self.command()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=vllm_command.environment(self.config, self.api_key),
                pass_fds=(read_fd,),
                start_new_session=True,  # Ctrl-C ends the service first, which then ends the engine
            )
        finally:
            os.close(read_fd)
        assert self._leash.stdout is not None
        self._reader = asyncio.create_task(self._log.follow(self._leash.stdout))

    async def _until_healthy(self, client: PolicyClient, began: float, progress: Progress) -> None:
        last_report = began
        while not await client.health():
            if not self.is_running:
                raise await self._start_error(f"{await self.wait_ended()} (while starting)")
            if time.monotonic() - last_report >= 5.0:
                last_report = time.monotonic()
                progress(f"starting vLLM, {last_report - began:.0f} s")
            await asyncio.sleep(0.25)

    async def _warm_up(self, client: PolicyClient) -> None:
        """Ask once, since the first answer takes up to 18 s."""
        hello = [{"role": "user", "content": "Hello"}]
        try:
            await client.chat(
                {"model": "base", "messages": hello, "max_tokens": 2, "logprobs": True}
            )
        except (EngineError, EngineRejectedError, EngineUnavailableError) as error:
            raise await self._start_error(f"vLLM's first answer failed: {error}") from error

    async def _start_error(self, what: str) -> EngineStartError:
        """End what is left of the process, and put what it said last below ``what``."""
        await self.stop()
        advice = advise(self._log.lines)
        if advice is not None and advice not in what:
            what = f"{what}; {advice}"
        lines = "\n".join(self.tail())
        return EngineStartError(f"{what}\nLast lines of {self._log.path}:\n{lines}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
