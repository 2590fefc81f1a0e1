"""The parent's handle on the training process: start it, ask for steps, and know how it died.

Nothing here imports torch. The process runs at low priority on a leash: it dies with its parent,
whatever kills the parent.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from learner.errors import NoSignalError, RowError, TrainingError
from learner.trainer_config import TrainerConfig
from memory.errors import AdapterError, DenizenError

_ERRORS: dict[str | None, type[DenizenError]] = {
    error.code: error for error in (AdapterError, NoSignalError, RowError, TrainingError)
}
_GRACE_S = 5.0
"""After its input is closed the process has nothing left to do but to end."""

_NUM_LOG_LINES = 8
_REPOSITORY = Path(__file__).resolve().parents[1]


class TrainingProcess:
    """``async with TrainingProcess(...) as training: await training.step(rows, out)``.

    Steps run one after another; weights and optimizer live in the process between them. Once a
    step timed out or the process died, every later step raises ``TrainingError``.
    """

    def __init__(
        self,
        *,
        model_dir: Path,
        config: TrainerConfig,
        log_path: Path,
        parent_adapter: Path | None = None,
        resume_from: Path | None = None,
        max_memory_mib: int | None = None,
        step_timeout_s: float = 900.0,
        nice: int = 10,
    ) -> None:
        """Describe the process; ``async with`` starts it.

        Args:
            model_dir: the base model's folder.
            config: settings of the adapter and the steps.
            log_path: what the process writes to stderr is appended here.
            parent_adapter: folder of the adapter to continue from; None starts from the base.
            resume_from: folder of a step that an earlier process of the same run wrote with its
                moments; the next step is then what it would have been.
            max_memory_mib: what the process may allocate; None does not bound it.
            step_timeout_s: seconds after which a step counts as hung; the first one includes
                loading the model.
            nice: added to the process's priority value, so that answering goes first.
        """
        self._command = [sys.executable, "-m", "learner.worker", "--model", str(model_dir)]
        fields = {name: getattr(config, name) for name in TrainerConfig.model_fields}
        self._command += ["--config", TrainerConfig(**fields).model_dump_json()]
        if parent_adapter is not None:
            self._command += ["--parent", str(parent_adapter)]
        if resume_from is not None:
            self._command += ["--resume-from", str(resume_from)]
        if max_memory_mib is not None:
            self._command += ["--max-memory-mib", str(max_memory_mib)]
        self._log_path = log_path
        self._step_timeout_s = step_timeout_s
        self._nice = nice
        self._process: asyncio.subprocess.Process | None = None
        self._leash_fd: int | None = None

    async def __aenter__(self) -> Self:
        """Start the process; it loads the model while the caller goes on."""
        read_fd, self._leash_fd = os.pipe()
        leash = ["-m", "agent.leash", "--fd", str(read_fd), "--nice", str(self._nice), "--"]
        search_path = [str(_REPOSITORY), os.environ.get("PYTHONPATH")]
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(path for path in search_path if path),
        }
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._log_path.open("ab") as log:
                self._log_start = log.tell()
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *leash,
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    pass_fds=(read_fd,),
                    start_new_session=True,
                    env=environment,
                )
        except BaseException:
            self._cut_leash()
            raise
        finally:
            os.close(read_fd)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process: politely after a clean run, at once after an error."""
        if error is None and self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._wait(_GRACE_S)
        await self._kill()

    async def step(
        self, rows_path: Path, out_dir: Path, *, keep_moments: bool = False
    ) -> dict[str, Any]:
        """Make one optimizer step on a row file; the adapter stands in ``out_dir`` afterwards.

        Args:
            rows_path: written by ``learner.rows.write_rows``.
            out_dir: must not exist; its parent folder must.
            keep_moments: whether another process can go on from it (``resume_from``).

        Returns:
            The step's receipt (``learner.trainer.StepReceipt`` as JSON).

        Raises:
            NoSignalError: nothing to learn from; the process is ready for the next step.
            RowError: the row file is broken.
            AdapterError: the parent adapter does not fit, or ``out_dir`` exists.
            TrainingError: the step failed, timed out, or the process died; says how.
        """
        paths = {"rows": str(rows_path.absolute()), "out": str(out_dir.absolute())}
        receipt: dict[str, Any] = await self._ask({**paths, "keep_moments": keep_moments})
        return receipt

    async def effect(self) -> dict[str, Any] | None:
        """Ask what the steps have done to answers that were rewarded.

        Returns:
            ``learner.effect.Effect`` as JSON; None where no step of this process had any.

        Raises:
            TrainingError: it failed, timed out, or the process died; says how.
        """
        effect: dict[str, Any] | None = await self._ask({"effect": True})
        return effect

    async def _ask(self, request: dict[str, Any]) -> Any:
        """Return what the process answers.

        Raises:
            DenizenError: the one that it answers with, or a ``TrainingError``.
        """
        try:
            async with asyncio.timeout(self._step_timeout_s):
                line = await self._exchange(json.dumps(request).encode() + b"\n")
        except TimeoutError as error:
            await self._kill()
            raise TrainingError(
                f"no answer from the training process within {self._step_timeout_s:g} s; "
                f"it was ended. Its log is {self._log_path}"
            ) from error
        if not line.endswith(b"\n"):
            raise TrainingError(await self._death())
        reply = json.loads(line)
        if not reply["ok"]:
            raise _ERRORS.get(reply["kind"], TrainingError)(reply["error"])
        return reply["receipt"]

    async def _exchange(self, request: bytes) -> bytes:
        """Send one line and return the answer; cut short or empty when the process is gone."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise TrainingError("the training process was not started: use `async with`")
        # It is gone, and may have said why before; uvloop's word for that is a RuntimeError.
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.write(request)
            await process.stdin.drain()
        return await process.stdout.readline()

    async def _death(self) -> str:
        """Say how the process ended, with the last lines of its log."""
        status = await self._wait(_GRACE_S)
        cause = "still runs but closed its output" if status is None else f"ended with {status}"
        if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
            cause += " (killed, likely out of memory)"
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode(errors="replace").splitlines()[-_NUM_LOG_LINES:]
        return "\n".join([f"the training process {cause}; its last words:", *lines])

    async def _wait(self, timeout_s: float) -> int | None:
        """Return the exit status, or None when it has not ended in time."""
        if self._process is None:
            return None
        try:
            async with asyncio.timeout(timeout_s):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def _kill(self) -> None:
        """Cut the leash, which ends everything the process started; wait until it is gone.

        The leash itself is never killed: on a busy machine that would leave the process behind.
        """
        self._cut_leash()
        if self._process is not None:
            await self._process.wait()

    def _cut_leash(self) -> None:
        if self._leash_fd is not None:
            os.close(self._leash_fd)
            self._leash_fd = None
