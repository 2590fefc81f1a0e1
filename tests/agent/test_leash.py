import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Started by the leash: writes its own id, then its child's (which ignores SIGTERM), and waits.
STUBBORN_FAMILY = """
import os, subprocess, sys, time
ignore = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
child = subprocess.Popen(
    [sys.executable, "-c", ignore + "; time.sleep(60)"], stdout=subprocess.PIPE)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
time.sleep(60)
"""


class Leashed:
    """A leash, held by this process."""

    def __init__(self, *command: str, options: tuple[str, ...] = ()) -> None:
        read_fd, self.write_fd = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agent.leash", "--fd", str(read_fd), *options),
                *("--", *command),
            ],
            pass_fds=(read_fd,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.close(read_fd)

    def let_go(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def end(self) -> None:
        self.let_go()
        self.process.communicate(timeout=20)


@pytest.fixture
def leash() -> Iterator[Callable[..., Leashed]]:
    started: list[Leashed] = []

    def start(*command: str, options: tuple[str, ...] = ()) -> Leashed:
        started.append(Leashed(*command, options=options))
        return started[-1]

    yield start
    for one in started:
        one.end()


def is_alive(pid: int) -> bool:
    """Say whether the process runs; a zombie that nobody has collected yet does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def wait_until_gone(*pids: int) -> None:
    deadline = time.monotonic() + 10
    while any(is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still alive: {[p for p in pids if is_alive(p)]}"
        time.sleep(0.01)


def family_of(held: Leashed) -> list[int]:
    pids = [int(word) for word in held.process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    return pids


def test_the_childs_status_is_the_leashs(leash):
    process = leash(sys.executable, "-c", "raise SystemExit(7)").process
    assert process.wait(timeout=20) == 7


def test_a_child_that_died_of_a_signal_gives_128_and_the_signal(leash):
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert leash(sys.executable, "-c", code).process.wait(timeout=20) == 128 + signal.SIGKILL


def test_a_program_that_does_not_exist_gives_127_and_says_so(leash):
    process = leash("/no/such/program").process
    assert process.wait(timeout=20) == 127
    assert "/no/such/program" in process.stderr.read()


def test_stdin_and_stdout_are_the_childs_own(leash):
    process = leash(sys.executable, "-c", "print(input().upper())").process
    output, _ = process.communicate("a line\n", timeout=20)
    assert output == "A LINE\n"


def test_the_pipe_is_not_inherited_by_the_child(leash):
    code = "import os; print(len(os.listdir('/proc/self/fd')))"
    inherited = leash(sys.executable, "-c", code).process.communicate(timeout=20)[0]
    plain = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True)
    assert inherited == plain.stdout


def test_nice_lowers_the_childs_priority(leash):
    code = "import os; print(os.nice(0))"
    output = leash(sys.executable, "-c", code, options=("--nice", "7")).process.communicate()[0]
    assert int(output) == min(os.nice(0) + 7, 19)  # the kernel knows nothing above 19


def autogroups_below(pid: int) -> str:
    """Return what the kernel says of the sessions of a process's children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return "".join(Path(f"/proc/{child}/autogroup").read_text("ascii") for child in children)


def has_autogroups() -> bool:
    path = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return path.exists() and path.read_text(encoding="ascii").strip() == "1"


@pytest.mark.skipif(not has_autogroups(), reason="this kernel shares by processes alone")
def test_nice_lowers_the_priority_of_the_childs_session(leash):
    held = leash("sleep", "60", options=("--nice", "7"))
    deadline = time.monotonic() + 10
    while "nice 7" not in autogroups_below(held.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_closing_the_pipe_ends_the_whole_group_within_the_grace(leash):
    held = leash(sys.executable, "-c", STUBBORN_FAMILY, options=("--grace", "0.2"))
    pids = family_of(held)
    held.let_go()
    assert held.process.wait(timeout=20) == 128 + signal.SIGTERM
    wait_until_gone(*pids)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(leash):
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); "
        "print(1, flush=True); time.sleep(60)"
    )
    held = leash(sys.executable, "-c", code, options=("--grace", "0.2"))
    held.process.stdout.readline()
    held.let_go()
    assert held.process.wait(timeout=20) == 128 + signal.SIGKILL


def test_a_child_may_end_well_within_the_grace(leash):
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); "
        "print(1, flush=True); time.sleep(60)"
    )
    held = leash(sys.executable, "-c", code)
    held.process.stdout.readline()
    held.let_go()
    assert held.process.wait(timeout=20) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_leash_ends_the_group(leash, number):
    held = leash(sys.executable, "-c", STUBBORN_FAMILY, options=("--grace", "0.2"))
    pids = family_of(held)
    held.process.send_signal(number)
    held.process.wait(timeout=20)
    wait_until_gone(*pids)


def test_the_group_dies_when_the_parent_is_killed_with_sigkill():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, STUBBORN_FAMILY], stdout=subprocess.PIPE, text=True
    )
    with parent:
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 3
        parent.kill()
        wait_until_gone(*pids)


# Starts the family under a leash as the service does, and says who runs.
PARENT = """
import os, subprocess, sys, time
read_fd, write_fd = os.pipe()
leash = subprocess.Popen(
    [sys.executable, "-m", "agent.leash", "--fd", str(read_fd), "--grace", "0.2",
     "--", sys.executable, "-c", sys.argv[1]],
    pass_fds=(read_fd,), stdout=subprocess.PIPE, text=True, start_new_session=True)
print(leash.pid, leash.stdout.readline().strip(), flush=True)
time.sleep(60)
"""
