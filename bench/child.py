"""A child process that says things through its standard output, and may be killed.

It is a fork, so the parent must have no threads.
"""

import os
import signal
import time
import traceback
from collections.abc import Callable
from itertools import islice


def forked(
    work: Callable[[], None], kill_after_s: float | None = None, *, kill_after_lines: int = 0
) -> bytes:
    """Run work in a child that says things through its standard output; return what it said.

    With ``kill_after_s`` the child is killed that many seconds after it said ``kill_after_lines``.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        try:
            work()
        except BaseException:
            say(f"the process failed: {traceback.format_exc(limit=4)!r}")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = b"".join(islice(pipe, kill_after_lines))
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            os.kill(pid, signal.SIGKILL)
        said += pipe.read()
    os.waitpid(pid, 0)
    return said


def say(line: str) -> None:
    """Say a line at once, with nothing left in a buffer of a process that is killed."""
    os.write(1, f"{line}\n".encode())
