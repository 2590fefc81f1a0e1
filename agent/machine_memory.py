"""What the kernel says about memory: how much can be had, and how often it killed for want of it.

Reads ``/proc`` and the control groups, version 1 and 2, of this process. Knows no program that
wants the memory.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
_FILES = {
    "2": ("memory.max", "memory.current", "inactive_file"),
    "1": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Version of the control groups -> limit, usage, and what of the usage is cache that can go."""


def available_bytes(root: Path = ROOT) -> int | None:
    """Return how much memory a new program can get: the machine's, or less by a group's limit.

    None where the system does not say. ``root`` is where ``proc`` and ``sys`` are mounted.
    """
    machine = _fields(root / "proc/meminfo", unit_bytes=1024).get("MemAvailable:")
    return min((n for n in (machine, *_left_in_groups(root)) if n is not None), default=None)


def num_oom_kills(root: Path = ROOT) -> int | None:
    """Return how many processes the kernel has killed for want of memory since it started.

    Kills inside a control group count too. None where the kernel does not say.
    """
    return _fields(root / "proc/vmstat").get("oom_kill")


def _left_in_groups(root: Path) -> Iterator[int]:
    """Yield what each limited group has left, from this process's own up to the outermost."""
    for group in _memory_groups(root):
        for limit_name, usage_name, cache_name in _FILES.values():
            limit, usage = _number(group / limit_name), _number(group / usage_name)
            if limit is not None and usage is not None:
                cache = _fields(group / "memory.stat").get(cache_name, 0)
                yield max(0, limit - usage + cache)


def _memory_groups(root: Path) -> Iterator[Path]:
    """Yield the folders that may limit this process; inside a container not all of them exist."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
        else:
            continue
        own = mount / path.lstrip("/")
        yield own
        yield from (parent for parent in own.parents if parent.is_relative_to(mount))


def _fields(file: Path, unit_bytes: int = 1) -> dict[str, int]:
    """Read lines such as ``oom_kill 3`` or ``MemAvailable: 24121720 kB``."""
    words = [line.split() for line in _text(file).splitlines()]
    return {w[0]: int(w[1]) * unit_bytes for w in words if len(w) > 1 and w[1].isdigit()}


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
