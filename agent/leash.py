"""Runs a program that may not outlive its parent.

``python -m agent.leash --fd N [--nice N] [--grace SECONDS] -- CMD ARG…``

The parent makes a pipe, passes the *read* end on as descriptor ``N`` (``pass_fds=(N,),
start_new_session=True``) and keeps the write end open. Whatever ends the parent, SIGKILL included,
closes the write end: the leash then sends SIGTERM to the program's whole process group, and SIGKILL
after ``--grace`` seconds. Closing the write end on purpose, or SIGTERM or SIGINT to the leash, does
the same. ``--nice N`` lowers the program's priority, and that of its session, which is what counts
where Linux shares the processor among sessions first (autogroup, ``man 7 sched``).

The program keeps the leash's stdin, stdout and stderr, so it may talk to the parent; it does not
inherit the pipe. The leash ends when the program ends, with its status (128 + n when signal n ended
it), and leaves nothing of the group behind. It is a program only: nothing is imported from here,
and it imports the standard library alone.
"""

import argparse
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line described above; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m agent.leash")
    parser.add_argument("--fd", type=int, required=True, help="read end of the parent's pipe")
    parser.add_argument("--nice", type=int, default=0, help="added to the priority value (0-19)")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("command", nargs="+", help="the program and its arguments, after --")
    options = parser.parse_args(argv)
    os.set_inheritable(options.fd, False)
    os.nice(options.nice)
    wake_fd = _wake_on_signals()
    try:
        child = subprocess.Popen(options.command, start_new_session=True)
    except OSError as error:
        print(f"leash: cannot start {options.command[0]}: {error}", file=sys.stderr)
        return 127
    if options.nice:
        _lower_session(child.pid, options.nice)
    _wait_for_end(child, options.fd, wake_fd)
    return _end_group(child, options.grace)


def _lower_session(pid: int, nice: int) -> None:
    """Give the session of a program its priority value, where sessions have one."""
    try:
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")
    except OSError:  # no autogroups here, or the program has ended
        return


def _wake_on_signals() -> int:
    """Return a descriptor that becomes readable at a signal: told to end, or the child ended."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)  # the wake-up descriptor needs some handler
    return read_fd


def _wait_for_end(child: "subprocess.Popen[bytes]", parent_fd: int, wake_fd: int) -> None:
    """Return when the child has ended, the pipe is closed, or the leash was told to end."""
    while child.poll() is None:
        readable, _, _ = select.select([parent_fd, wake_fd], [], [])
        if parent_fd in readable and not os.read(parent_fd, 4096):
            return
        if wake_fd in readable and set(os.read(wake_fd, 4096)) - {signal.SIGCHLD}:
            return


def _end_group(child: "subprocess.Popen[bytes]", grace_s: float) -> int:
    """End what is left of the child's group; returns the child's status as a shell would say it."""
    _signal_group(child.pid, signal.SIGTERM)
    try:
        status = child.wait(timeout=grace_s)
    except subprocess.TimeoutExpired:
        _signal_group(child.pid, signal.SIGKILL)
        status = child.wait()
    _signal_group(child.pid, signal.SIGKILL)  # grandchildren that ignored SIGTERM
    return status if status >= 0 else 128 - status


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main())
