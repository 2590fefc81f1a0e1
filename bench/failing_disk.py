"""A disk that fails at each write and sync in turn, by way of ``failing_disk.c``.

``bench/kills.py`` is its command line.
"""

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias

from bench.child import forked, say
from bench.losses import Told, check
from bench.recorder import acknowledged, call_of, erase, record_episode, recorded
from memory.database import MemoryConfig
from memory.errors import StoreError
from memory.store import Store

Durability: TypeAlias = Literal["disk", "process"]
DURABILITIES: tuple[Durability, ...] = ("disk", "process")
CODES = (errno.ENOSPC, errno.EIO)
FOR_EVER = 1_000_000
SHIM = Path(__file__).with_name("failing_disk.c")


def sweep_faults(folder: Path, stride: int) -> dict[str, Any]:
    """Let each write and sync of the database fail; return what was wrong afterwards.

    Args:
        folder: where to work.
        stride: 1: each of them; n: each n-th.
    """
    library = folder / "failing_disk.so"
    build = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SHIM), "-ldl"]
    subprocess.run(build, check=True, capture_output=True)
    command = [sys.executable, "-m", "bench.kills", "--sweep-in", str(folder)]
    environment = os.environ | {"LD_PRELOAD": str(library), "FAULT_FILE": "denizen.db"}
    done = subprocess.run(
        [*command, "--stride", str(stride)], env=environment, check=True, capture_output=True
    )
    return dict(json.loads(done.stdout))


def sweep(folder: Path, stride: int) -> int:
    """Run under the shim: forks a child for each fault, and looks at what it leaves behind."""
    began = time.perf_counter()
    report: dict[str, Any] = {"writes_and_syncs": {}, "runs": 0, "problems": []}
    refused: Counter[str] = Counter()
    for durability in DURABILITIES:
        num_points = _count_points(folder / durability, durability)
        report["writes_and_syncs"][durability] = num_points
        points = product(range(1, num_points + 1, stride), CODES, (1, FOR_EVER))
        for number, code, lasts in points:
            told, found = _with_fault(folder, durability, number, code, lasts)
            report["runs"] += 1
            refused.update(told.refused)
            name = f"{errno.errorcode[code]} at {number}, {'once' if lasts == 1 else 'on'}"
            report["problems"] += [f"{durability}, {name}: {line}" for line in found]
    report["refusals"] = dict(refused.most_common(8))
    report["seconds"] = round(time.perf_counter() - began, 1)
    print(json.dumps(report))
    return 0


def _count_points(home: Path, durability: Durability) -> int:
    home.mkdir()
    counted = home / "counted"
    os.environ["FAULT_COUNT"] = str(counted)
    work = f"import bench.failing_disk as d; d._work(d.Path({str(home)!r}), {durability!r})"
    subprocess.run([sys.executable, "-c", work], check=True, capture_output=True)
    del os.environ["FAULT_COUNT"]
    return int(counted.read_text())


def _with_fault(
    folder: Path, durability: Durability, number: int, code: int, lasts: int
) -> tuple[Told, list[str]]:
    home, told = folder / "home", Told()
    home.mkdir()

    def work() -> None:
        setting = {"FAULT_AT": number, "FAULT_ERRNO": code, "FAULT_FOR": lasts}
        os.environ.update({name: str(value) for name, value in setting.items()})
        _work(home, durability)

    told.hear(forked(work))
    problems = forked(lambda: check(home, told)).decode().splitlines()
    if lasts == 1 and "last" not in {id.partition("/")[0] for id in told.calls}:
        problems.append("it did not go on after one fault")
    shutil.rmtree(home)
    return told, problems


def _work(home: Path, durability: Durability) -> None:
    """Do a little of everything that writes: open, record, erase, checkpoint, close, twice."""
    for episode_id in ("first", "second", "last"):
        store = _opened(home, durability)
        if store is None:
            continue
        asyncio.run(_some_of_everything(store, episode_id))
        store.close()


def _opened(home: Path, durability: Durability) -> Store | None:
    for _ in range(2):  # as a supervisor would
        try:
            return Store(home / "denizen.db", MemoryConfig(durability=durability))
        except StoreError as error:
            say(f"refused {error.message}")
    return None


async def _some_of_everything(store: Store, episode_id: str) -> None:
    await record_episode(store, f"{episode_id}_gone", turns=1)
    await record_episode(store, episode_id, turns=2)
    await erase(store, f"{episode_id}_gone")
    try:
        await asyncio.to_thread(
            store.database.alone,
            lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall(),
        )
    except StoreError as error:
        say(f"refused {error.message}")
    await acknowledged(f"call {episode_id}/2", recorded(store, call_of(episode_id, 2)))
