"""One run of the program that embeds: asked over pipes, with a deadline and bounded patience.

The child computes on what processors leave idle (``SCHED_IDLE``), so that no answer waits for an
embedding; measured with 500 streams on one core, a child at niceness 10 made the median first chunk
3 ms later. Where processors are never idle, it would never compute: after a second it gets the
share of niceness 10 until it has answered, and it loads the model with that share. Linux refuses
the way back from ``SCHED_IDLE`` to who may not raise priorities (``RLIMIT_NICE``); such a child is
ended after a longer wait, and the next one keeps its share. It does not know what is asked.
"""

import os
import selectors
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

PATIENCE_S = 1.0
"""How long a request waits for idle processors."""
LOST_AFTER_S = 10.0
"""The same where the child cannot be raised: another one costs seconds of a core to load."""
_PIPE_BYTES = 65_536


class StarvedError(Exception):
    """The child gets no processor and may not be raised; it was ended."""


class EmbeddingChild:
    """A process that answers each line with a line; for one thread at a time.

    Example:
        ``EmbeddingChild([sys.executable, "-m", "memory.embedding_worker"], env=os.environ)``
    """

    def __init__(self, command: list[str], *, env: dict[str, str], stands_back: bool) -> None:
        """Start it.

        Args:
            command: the program.
            env: its environment.
            stands_back: whether it computes on idle processors once it has loaded the model.

        Raises:
            OSError: it cannot be started.
        """
        self._stands_back = stands_back and hasattr(os, "SCHED_IDLE")
        self._is_idle = False
        self.has_answered = False
        self._process, self._keeper = _started(command, env)
        self.pid = self._process.pid
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)

    def ask(self, request: bytes, *, timeout_s: float) -> bytes | None:
        """Send a line and return the line that answers it; None when the child has ended.

        Raises:
            TimeoutError: there is no answer in time.
            StarvedError: it gets no processor, and cannot be given one.
        """
        began = time.monotonic()
        left, answer = memoryview(request), bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while not answer.endswith(b"\n"):
                waited_s = time.monotonic() - began
                if waited_s >= timeout_s:
                    raise TimeoutError(f"no answer in {timeout_s:g} s")
                self._hurry(waited_s)
                ready = {key.fileobj for key, _ in selector.select(min(PATIENCE_S, timeout_s))}
                if self._stdin in ready:
                    left = left[self._sent(left) :]
                    if not left:
                        selector.unregister(self._stdin)
                if self._stdout in ready:
                    part = os.read(self._stdout.fileno(), _PIPE_BYTES)
                    if not part:
                        return None
                    answer += part
        self.has_answered = True
        self._stand_back()
        return bytes(answer)

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        return self._process.returncode

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, at most so long."""
        self._keeper.join(timeout_s)

    def kill(self) -> None:
        """End it; does not wait, for even to end takes a processor."""
        self._process.kill()

    def discard(self) -> None:
        """End it and let go of its pipes."""
        self.kill()
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()

    def _sent(self, left: memoryview) -> int:
        try:
            return os.write(self._stdin.fileno(), left[:_PIPE_BYTES])
        except BrokenPipeError:  # it has ended; its output says so
            return len(left)

    def _stand_back(self) -> None:
        if self._stands_back and not self._is_idle:
            self._is_idle = _schedule(self.pid, os.SCHED_IDLE)

    def _hurry(self, waited_s: float) -> None:
        """Give the child its share when it has waited for idle processors long enough."""
        if not self._is_idle or waited_s < PATIENCE_S:
            return
        self._is_idle = not _schedule(self.pid, os.SCHED_OTHER)
        if self._is_idle and waited_s >= LOST_AFTER_S:
            raise StarvedError


def _started(
    command: list[str], env: dict[str, str]
) -> tuple["subprocess.Popen[bytes]", threading.Thread]:
    """Start a program from a thread that lives as long as it, and takes note of its end.

    A child that ends with its parent ends with the parent's *thread* that started it.
    """
    started: SimpleQueue[subprocess.Popen[bytes] | OSError] = SimpleQueue()

    def keep() -> None:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, bufsize=0
            )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    keeper = threading.Thread(target=keep, name="embedder", daemon=True)
    keeper.start()
    process = started.get()
    if isinstance(process, OSError):
        raise process
    return process, keeper


def _schedule(pid: int, policy: int) -> bool:
    """Set how all threads of a process are scheduled; False where that is refused."""
    threads = Path(f"/proc/{pid}/task")
    try:
        for thread in [int(name) for name in os.listdir(threads)]:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setscheduler(thread, policy, os.sched_param(0))
    except (PermissionError, FileNotFoundError):
        return False
    return True
