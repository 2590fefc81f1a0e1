"""Runs Python code that nobody has read, apart from everything else.

A process of its own in a temporary folder, with a stripped environment, limits of CPU time, memory,
file size, open files and processes, a deadline after which it and all its children are killed, and,
by Linux namespaces (``unshare``; no root is needed where user namespaces are allowed):

- no network, and none of the machine's other processes is seen or can be signalled;
- the whole file system read-only but for the temporary folder, which holds 64 MiB at most;
  Denizen's home is not there at all.

It does not protect from: reading other files that the service's user may read (they cannot be sent
anywhere; what comes back are the results below), faults of the kernel, side channels, and use of
the machine's time within the limits. Without namespaces only the limits hold: the code could write
what the service may write and use the network, so it is run only where that was asked for.

It knows nothing of tests or answers: JSON goes in and JSON comes out.
"""

import contextlib
import functools
import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_MAX_REPLY_BYTES = 2**20
_SHELL = """set -e
work=$1; hidden=$2; shift 2
mount --make-rprivate /
mount -t tmpfs -o size=64m,mode=700 tmpfs "$work"
while read -r _ where _; do
  case "$where" in "$work"|/proc|/proc/*|/dev|/dev/*|/sys|/sys/*) continue;; esac
  mount -o remount,bind,ro "$where" 2>/dev/null || mount -o remount,bind,ro,nosuid,nodev "$where"
done < /proc/self/mounts
if [ -d "$hidden" ]; then mount -t tmpfs -o ro,size=4k tmpfs "$hidden"; fi
cd "$work"
exec "$@"
"""
"""What is entered with: it fails where any of this is not allowed, and nothing runs."""

_LAUNCHER = """
import json, os, resource, sys
asked = json.load(sys.stdin)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what was asked cannot be read again
for name, value in asked["limits"].items():
    resource.setrlimit(getattr(resource, name), (value, value))
def reply(document, _fd=int(sys.argv[1]), _mark=asked["mark"], _write=os.write, _dump=json.dumps):
    text = (_mark + _dump(document) + "\\n").encode()
    while text:
        text = text[_write(_fd, text):]
program, given = asked["program"], asked["given"]
del asked
scope = {"__name__": "program", "given": given, "reply": reply}
exec(compile(program, "program.py", "exec"), scope)
"""

Isolation = Literal["namespaces", "limits"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a run may use."""

    deadline_s: float = 10.0  # of the clock; CPU time as well, rounded up
    memory_mib: int = 512  # of address space
    file_mib: int = 16  # each file
    num_files: int = 64  # open at once
    num_processes: int = 64  # of the user in the namespace; root's are not counted


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """What came of a run.

    Example:
        ``Ran(reply={"values": [5]}, reason=None, seconds=0.04, isolation="namespaces")``
    """

    reply: Any  # None when nothing came
    reason: str | None  # why nothing came
    seconds: float
    isolation: Isolation


def run(program: str, given: Any, *, isolation: Isolation, limits: Limits | None = None) -> Ran:
    """Run a program and return what it replies.

    Args:
        program: Python; finds ``given`` and a function ``reply`` that takes one JSON document. The
            first reply counts.
        given: JSON for it.
        isolation: "namespaces" where ``has_namespaces()``.
        limits: what it may use.

    Raises:
        OSError: no process can be started here.
    """
    limits, began = limits or Limits(), time.monotonic()
    mark = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="denizen-sandbox-") as folder:
        work = Path(folder)
        asked = {"program": program, "given": given, "mark": mark, "limits": _rlimits(limits)}
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd, "rb", buffering=0) as replies, tempfile.TemporaryFile() as request:
            request.write(json.dumps(asked).encode())
            request.seek(0)
            try:
                process = subprocess.Popen(
                    [*_way_in(work, isolation), *_python(write_fd)],
                    cwd=work,
                    env={"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"},
                    stdin=request,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(write_fd,),
                    start_new_session=True,
                )
            finally:
                os.close(write_fd)
            try:
                line, reason = _first_line(replies, began + limits.deadline_s)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
        reply, reason = _read(line, mark, reason or _ending(status))
    return Ran(reply=reply, reason=reason, seconds=time.monotonic() - began, isolation=isolation)


@functools.cache
def has_namespaces() -> bool:
    """Whether code can be run apart from network, files and processes here; tried once."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    try:
        return bool(run("reply(given)", 1, isolation="namespaces").reply == 1)
    except OSError:
        return False


def _rlimits(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_CPU": max(1, int(-(-limits.deadline_s // 1))),
        "RLIMIT_AS": limits.memory_mib * 2**20,
        "RLIMIT_FSIZE": limits.file_mib * 2**20,
        "RLIMIT_NOFILE": limits.num_files,
        "RLIMIT_NPROC": limits.num_processes,
        "RLIMIT_CORE": 0,
    }


def _way_in(work: Path, isolation: Isolation) -> list[str]:
    if isolation == "limits":
        return []
    hidden = Path(os.environ.get("DENIZEN_HOME") or "~/.denizen").expanduser()
    names = ["--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts"]
    shell = ["sh", "-c", _SHELL, "sandbox", str(work), str(hidden)]
    return ["unshare", *names, "--fork", "--kill-child", "--mount-proc", *shell]


def _python(write_fd: int) -> list[str]:
    # Isolated and without site: neither the environment's packages nor the user's.
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(write_fd)]


def _first_line(replies: Any, until: float) -> tuple[bytes, str | None]:
    """Read up to the first newline; the reason says why there is none."""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(replies, selectors.EVENT_READ)
        while b"\n" not in line:
            left_s = until - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                return b"", "it ran past its deadline"
            piece = replies.read(65_536)
            if not piece:
                return b"", None
            line += piece
            if len(line) > _MAX_REPLY_BYTES:
                return b"", "its reply is too long"
    return line.partition(b"\n")[0], None


def _read(line: bytes, mark: str, reason: str) -> tuple[Any, str | None]:
    text = line.decode("utf-8", "replace")
    if not text.startswith(mark):
        return None, "it wrote where only the result belongs" if text else reason
    return json.loads(text.removeprefix(mark)), None


def _ending(status: int) -> str:
    if status in {-signal.SIGXCPU, -signal.SIGKILL, 128 + signal.SIGXCPU, 128 + signal.SIGKILL}:
        return "it was killed: past its CPU time or memory"
    return f"it ended with status {status} and no result"
