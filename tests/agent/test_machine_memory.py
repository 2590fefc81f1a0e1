from pathlib import Path

import pytest

from agent.machine_memory import available_bytes, num_oom_kills


def write(root: Path, **files: str) -> None:
    """Write files; ``__`` in a name stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def root(tmp_path) -> Path:
    write(tmp_path, proc__meminfo="MemTotal: 9000 kB\nMemAvailable:   8000 kB\n")
    return tmp_path


def test_without_groups_the_machine_counts(root):
    assert available_bytes(root) == 8000 * 1024


def test_a_group_of_version_2_limits_and_its_cache_can_go(root):
    group = {
        "sys__fs__cgroup__a__memory.max": "5000\n",
        "sys__fs__cgroup__a__memory.current": "4500",
    }
    write(root, proc__self__cgroup="0::/a\n", **group)
    assert available_bytes(root) == 500
    write(root, **{"sys__fs__cgroup__a__memory.stat": "anon 1\ninactive_file 300\n"})
    assert available_bytes(root) == 800


def test_the_tightest_of_a_group_and_those_around_it_counts(root):
    inner = {"memory.max": "max", "memory.current": "100"}
    outer = {"memory.max": "1000", "memory.current": "990"}
    write(root, proc__self__cgroup="0::/a/b\n")
    write(root, **{f"sys__fs__cgroup__a__b__{name}": text for name, text in inner.items()})
    write(root, **{f"sys__fs__cgroup__a__{name}": text for name, text in outer.items()})
    assert available_bytes(root) == 10


def test_a_group_of_version_1_limits(root):
    write(root, proc__self__cgroup="4:memory:/docker/1\n1:cpu:/\n")
    write(root, **{"sys__fs__cgroup__memory__memory.limit_in_bytes": "7000"})
    write(root, **{"sys__fs__cgroup__memory__memory.usage_in_bytes": "9000"})
    assert available_bytes(root) == 0  # above its limit for a moment: nothing is left


def test_where_nothing_is_said_nothing_is_known(tmp_path):
    assert available_bytes(tmp_path) is None
    assert num_oom_kills(tmp_path) is None


def test_the_kernels_kills_are_counted(root):
    write(root, proc__vmstat="nr_free_pages 12\noom_kill 3\n")
    assert num_oom_kills(root) == 3
