"""Threads for work behind the answers: they get a processor when nothing else wants it.

A thread of ordinary priority that reads the database or computes beside the event loop takes half
of a shared core, some milliseconds at a time, although it holds no lock; each answer under way
waits for it.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
NICENESS = 10
"""About a tenth of what an ordinary thread gets beside it."""
NUM_THREADS = 2


class Behind:
    """A few such threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(
            NUM_THREADS, thread_name_prefix="denizen-behind", initializer=_step_back
        )

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work in one of the threads and await what it returns."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Let the threads end with what they do now."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _step_back() -> None:
    """Lower this thread's priority; on Linux alone threads have one of their own."""
    with suppress(AttributeError, OSError):
        thread = threading.get_native_id()
        niceness = max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        os.setpriority(os.PRIO_PROCESS, thread, niceness)
