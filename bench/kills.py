"""Ends the store at random points, lets its disk fail, and looks for what was lost.

``python -m bench.kills --kills 1000`` starts a process that records conversations, vectors and
erasures as fast as it can, ends it with SIGKILL after a random time, starts again over what is
there, and checks: every acknowledged record is there and reads as it was written, whatever was
erased is gone whole, the ids that vectors are found under are those of the rows, and
``PRAGMA integrity_check`` is content. ``--faults`` lets each write and sync of the database fail in
turn, once and from then on, with ENOSPC and EIO; it needs gcc. Both print one JSON object.

Each round is a fork of a process that has imported everything and touched nothing.
"""

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from bench.child import forked
from bench.failing_disk import sweep, sweep_faults
from bench.losses import Told, check
from bench.recorder import erase, record_episode, vectors_of
from memory.store import Store

SESSIONS = 8  # conversations at once
ROUNDS_PER_HOME = 50  # then a new home: a full check reads all of it
LONGEST_S = 0.25


def main() -> None:
    """Run what the command line asks for."""
    options = _options()
    if options.sweep_in is not None:  # the process under the shim
        sys.exit(sweep(options.sweep_in, options.stride))
    with tempfile.TemporaryDirectory(prefix="denizen-kills-") as folder:
        report = (
            sweep_faults(Path(folder), options.stride)
            if options.faults
            else kill_often(Path(folder), options.kills, options.seed)
        )
    print(json.dumps(report, indent=2))
    sys.exit(bool(report["problems"]))


def kill_often(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill a loaded store again and again; return what was acknowledged, and what was wrong."""
    rng, problems = random.Random(seed), []
    acknowledged: Counter[str] = Counter()
    began = time.perf_counter()
    for first in range(0, kills, ROUNDS_PER_HOME):
        home, told = folder / str(first), Told()
        home.mkdir()
        rounds = range(first, min(first + ROUNDS_PER_HOME, kills))
        for number in rounds:
            said = forked(partial(_load, home, number), kill_after_s=_moment(rng))
            told.hear(said)
            is_last = number == rounds[-1]
            found = forked(partial(check, home, told, whole=is_last))
            problems += [f"kill {number}: {line}" for line in found.decode().splitlines()]
        acknowledged.update(calls=len(told.calls), vectors=len(told.vectors))
        acknowledged.update(erasures=len(told.erased))
        shutil.rmtree(home)
    return {
        "kills": kills,
        "acknowledged": dict(acknowledged),
        "problems": problems,
        "seconds": round(time.perf_counter() - began, 1),
    }


def _moment(rng: random.Random) -> float:
    """Return when to kill; some rounds end while the store is still being opened."""
    return rng.random() ** 2 * LONGEST_S


def _load(home: Path, number: int) -> None:
    """Record until killed."""
    store = Store(home / "denizen.db")
    asyncio.run(_record_for_ever(store, number))


async def _record_for_ever(store: Store, number: int) -> None:
    vectors = vectors_of(store)
    await asyncio.to_thread(vectors.open)

    async def session(index: int) -> None:
        last: str | None = None
        for episode_number in count():
            episode_id = f"ep_{number}_{index}_{episode_number}"
            await record_episode(store, episode_id)
            if last is not None and episode_number % 3 == 0:
                await erase(store, last)
            last = episode_id

    async def maintain() -> None:
        while True:
            await asyncio.sleep(0.02)
            await asyncio.to_thread(vectors.maintain)

    await asyncio.gather(maintain(), *(session(index) for index in range(SESSIONS)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--faults", action="store_true", help="let the disk fail instead")
    parser.add_argument("--stride", type=int, default=1, help="of faults: 1 tries each")
    parser.add_argument("--sweep-in", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
