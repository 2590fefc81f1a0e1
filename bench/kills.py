"""Ends the store at random points, lets its disk fail, and looks for what was lost.

``python -m bench.kills --kills 1000`` starts a process that records conversations, vectors and
erasures as fast as it can, ends it with SIGKILL after a random time, starts again over what is
there, and checks: every acknowledged record is there and reads as it was written, whatever was
erased is gone whole, the ids that vectors are found under are those of the rows, and
``PRAGMA integrity_check`` is content. ``--faults`` lets each write and sync of the database fail in
turn, once and from then on, with ENOSPC and EIO; it needs gcc. Both print one JSON object.

A record that was refused because a sync failed may turn up after a crash: its bytes were written,
and nobody could say whether they would stay.

Each round is a fork of a process that has imported everything and touched nothing.
"""

import argparse
import asyncio
import errno
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from memory.database import MemoryConfig, Transaction
from memory.episode_store import set_skill
from memory.errors import StoreError
from memory.store import Store
from memory.types import Call, CallStatus, Edge, Episode, EpisodeSource, utc_now
from memory.vectors import EpisodeVectors

DIMENSION = 16
MAX_EXACT = 64  # so few that the file of vectors is written too
TURNS = 4
SESSIONS = 8  # conversations at once
ROUNDS_PER_HOME = 50  # then a new home: a full check reads all of it
LONGEST_S = 0.25
FOR_EVER = 1_000_000
SHIM = Path(__file__).with_name("failing_disk.c")


def main() -> None:
    """Run what the command line asks for."""
    options = _options()
    if options.sweep_in is not None:  # the process under the shim
        sys.exit(_sweep(options.sweep_in, options.stride))
    with tempfile.TemporaryDirectory(prefix="denizen-kills-") as folder:
        report = (
            sweep_faults(Path(folder), options.stride)
            if options.faults
            else kill_often(Path(folder), options.kills, options.seed)
        )
    print(json.dumps(report, indent=2))
    sys.exit(bool(report["problems"]))


@dataclass(kw_only=True, slots=True)
class Told:
    """What a process said before it ended."""

    calls: list[str] = field(default_factory=list)  # acknowledged
    vectors: list[str] = field(default_factory=list)  # episodes
    erasing: set[str] = field(default_factory=set)  # begun
    erased: set[str] = field(default_factory=set)  # acknowledged
    refused: Counter[str] = field(default_factory=Counter)  # told to the caller, by what

    def hear(self, said: bytes) -> None:
        """Take what came through the pipe; a last line that was cut off was never said."""
        for line in said.decode().split("\n")[:-1]:
            kind, _, what = line.partition(" ")
            if kind == "call":
                self.calls.append(what)
            elif kind == "vector":
                self.vectors.append(what)
            elif kind == "erasing":
                self.erasing.add(what)
            elif kind == "erased":
                self.erased.add(what)
            else:
                self.refused[what] += 1


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
            said = _forked(lambda n=number, h=home: _load(h, n), kill_after_s=_moment(rng))
            told.hear(said)
            is_last = number == rounds[-1]
            found = _forked(lambda h=home, t=told, w=is_last: _check(h, t, whole=w))
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


def _forked(work: Callable[[], None], kill_after_s: float | None = None) -> bytes:
    """Run work in a child that says things through its standard output; return what it said."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        try:
            work()
        except BaseException:
            _say(f"the process failed: {traceback.format_exc(limit=4)!r}")
        finally:
            os._exit(0)
    os.close(writer)
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


# ---- the load


def _load(home: Path, number: int) -> None:
    """Record until killed."""
    store = Store(home / "denizen.db")
    asyncio.run(_record_for_ever(store, number))


async def _record_for_ever(store: Store, number: int) -> None:
    vectors = _vectors(store)
    await asyncio.to_thread(vectors.open)

    async def session(index: int) -> None:
        last: str | None = None
        for episode_number in range(FOR_EVER):
            episode_id = f"ep_{number}_{index}_{episode_number}"
            await _record_episode(store, episode_id)
            if last is not None and episode_number % 3 == 0:
                await _erase(store, last)
            last = episode_id

    async def maintain() -> None:
        while True:
            await asyncio.sleep(0.02)
            await asyncio.to_thread(vectors.maintain)

    await asyncio.gather(maintain(), *(session(index) for index in range(SESSIONS)))


async def _record_episode(store: Store, episode_id: str, turns: int = TURNS) -> None:
    for turn in range(turns):
        call = call_of(episode_id, turn)
        await _acknowledged(f"call {call.id}", _recorded(store, call))
    await _acknowledged(f"vector {episode_id}", _embedded(store, episode_id))


async def _acknowledged(what: str, writing: Any) -> None:
    """Say what was written once the store says so, or that it said no."""
    try:
        await writing
    except StoreError as error:
        _say(f"refused {error.message}")
    else:
        _say(what)


async def _recorded(store: Store, call: Call) -> None:
    source = EpisodeSource.CHAT
    episode = Episode(id=call.episode_id, created_at=utc_now(), source=source, task_text="a task")
    await store.episodes.record(episode, [call], [None])


async def _embedded(store: Store, episode_id: str) -> None:
    vector_D = np.random.default_rng().normal(size=DIMENSION).astype(np.float32)

    def write(db: Transaction) -> None:
        found = list(db.query("SELECT id FROM episodes WHERE id = ?", (episode_id,)))
        if found:  # its calls may have been refused
            fields = {"embedder": "kills", "vector_D": vector_D, "missing_reason": None}
            set_skill(db, episode_id, skill_id=None, **fields)
        else:
            raise StoreError("its episode is not there")

    await store.database.write_async(write)


async def _erase(store: Store, episode_id: str) -> None:
    def write(db: Transaction) -> None:
        db.execute("DELETE FROM vectors WHERE episode_id = ?", (episode_id,))
        db.execute("DELETE FROM calls WHERE episode_id = ?", (episode_id,))
        db.execute("DELETE FROM episodes WHERE id = ?", (episode_id,))

    _say(f"erasing {episode_id}")
    await _acknowledged(f"erased {episode_id}", store.database.write_async(write))


def call_of(episode_id: str, turn: int) -> Call:
    """Return a call that can be told from its id alone; each turn holds those before it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief. " * 30}]
    for number in range(turn):
        messages += [_question(episode_id, number), _answer(number)]
    messages.append(_question(episode_id, turn))
    return Call(
        id=f"{episode_id}/{turn}",
        episode_id=episode_id,
        created_at=utc_now(),
        adapter="base",
        request={"messages": messages},
        message=_answer(turn),
        prompt_token_ids=tuple(range(100 * turn + 100)),
        completion_token_ids=tuple(range(100 * turn + 100, 100 * turn + 150)),
        sampler_logprobs=(-0.5,) * 50,
        finish_reason="stop",
        status=CallStatus.OK,
        latency_ms=1.0,
        parent_id=f"{episode_id}/{turn - 1}" if turn else None,
        edge=Edge.CONTINUATION if turn else None,
    )


def _question(episode_id: str, turn: int) -> dict[str, Any]:
    return {"role": "user", "content": f"{episode_id}, question {turn}: " + "and then? " * 20}


def _answer(turn: int) -> dict[str, Any]:
    return {"role": "assistant", "content": f"answer {turn} " * 20}


# ---- the check


def _check(home: Path, told: Told, *, whole: bool = True) -> None:
    """Open what a killed process has left, and say what is wrong with it, a line each."""
    file = home / "denizen.db"
    if not file.exists():
        return
    store = Store(file)
    for problem in _problems(store, told, whole=whole):
        _say(problem)
    store.close()


def _problems(store: Store, told: Told, *, whole: bool) -> Iterator[str]:
    kept = {row["id"] for row in store.database.read("SELECT id FROM calls")}
    embedded = {row["episode_id"] for row in store.database.read("SELECT episode_id FROM vectors")}
    gone = told.erased | told.erasing
    acknowledged = [id for id in told.calls if id.partition("/")[0] not in gone]
    yield from (f"call {id} is lost" for id in acknowledged if id not in kept)
    for episode_id in told.vectors:
        if episode_id not in gone and episode_id not in embedded:
            yield f"the vector of {episode_id} is lost"
    of_episodes = Counter(id.partition("/")[0] for id in kept)
    of_told = Counter(id.partition("/")[0] for id in told.calls)
    for id in told.erased:
        if of_told[id] and id in of_episodes:  # what was refused may turn up: see the module
            yield f"{id} was erased and is there"
    for id in told.erasing - told.erased:
        if of_episodes[id] not in (0, of_told[id]):
            yield f"{id} was erased by half"
    for id in acknowledged if whole else acknowledged[-50:]:
        if id in kept and not _is_as_written(store, id):
            yield f"call {id} reads otherwise than it was written"
    yield from _vector_problems(store)
    yield from _file_problems(store.database.path)


def _is_as_written(store: Store, call_id: str) -> bool:
    episode_id, _, turn = call_id.partition("/")
    wanted, found = call_of(episode_id, int(turn)), store.episodes.call(call_id)
    return (found.request, found.prompt_token_ids) == (wanted.request, wanted.prompt_token_ids)


def _vector_problems(store: Store) -> Iterator[str]:
    vectors = _vectors(store)
    vectors.open()
    rows = {row["id"] for row in store.database.read("SELECT id FROM vectors")}
    if vectors.ids != rows:
        yield f"vectors are found under other ids than the rows': {len(vectors.ids ^ rows)} differ"


def _file_problems(file: Path) -> Iterator[str]:
    with closing(sqlite3.connect(file)) as connection:
        for pragma, healthy in (("integrity_check", [("ok",)]), ("foreign_key_check", [])):
            found = connection.execute(f"PRAGMA {pragma}").fetchall()
            if found != healthy:
                yield f"{pragma}: {found[:3]}"


def _vectors(store: Store) -> EpisodeVectors:
    return EpisodeVectors(
        store.database,
        embedder_id="kills",
        dimension=DIMENSION,
        file=store.database.path.with_name("vectors.faiss"),
        max_exact=MAX_EXACT,
    )


# ---- a disk that fails


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


def _sweep(folder: Path, stride: int) -> int:
    """Run under the shim: forks a child for each fault, and looks at what it leaves behind."""
    began = time.perf_counter()
    num_points = _count_points(folder)
    report: dict[str, Any] = {"writes_and_syncs": num_points, "runs": 0, "problems": []}
    refused: Counter[str] = Counter()
    for number in range(1, num_points + 1, stride):
        for code in (errno.ENOSPC, errno.EIO):
            for lasts in (1, FOR_EVER):
                name = f"{errno.errorcode[code]} at {number}, {'once' if lasts == 1 else 'on'}"
                told, found = _with_fault(folder, number, code, lasts)
                report["runs"] += 1
                refused.update(told.refused)
                report["problems"] += [f"{name}: {line}" for line in found]
    report["refusals"] = dict(refused.most_common(8))
    report["seconds"] = round(time.perf_counter() - began, 1)
    print(json.dumps(report))
    return 0


def _count_points(folder: Path) -> int:
    counted = folder / "counted"
    os.environ["FAULT_COUNT"] = str(counted)
    home = folder / "whole"
    home.mkdir()
    subprocess.run(
        [sys.executable, "-c", f"import bench.kills as k; k._work(k.Path({str(home)!r}))"],
        check=True,
        capture_output=True,
    )
    del os.environ["FAULT_COUNT"]
    return int(counted.read_text())


def _with_fault(folder: Path, number: int, code: int, lasts: int) -> tuple[Told, list[str]]:
    home, told = folder / "home", Told()
    home.mkdir()

    def work() -> None:
        setting = {"FAULT_AT": number, "FAULT_ERRNO": code, "FAULT_FOR": lasts}
        os.environ.update({name: str(value) for name, value in setting.items()})
        _work(home)

    told.hear(_forked(work))
    problems = _forked(lambda: _check(home, told)).decode().splitlines()
    if lasts == 1 and "last" not in {id.partition("/")[0] for id in told.calls}:
        problems.append("it did not go on after one fault")
    shutil.rmtree(home)
    return told, problems


def _work(home: Path) -> None:
    """Do a little of everything that writes: open, record, erase, checkpoint, close, twice."""
    for episode_id in ("first", "second", "last"):
        store = _opened(home)
        if store is None:
            continue
        asyncio.run(_some_of_everything(store, episode_id))
        store.close()


def _opened(home: Path) -> Store | None:
    for _ in range(2):  # as a supervisor would
        try:
            return Store(home / "denizen.db", MemoryConfig(durability="disk"))
        except StoreError as error:
            _say(f"refused {error.message}")
    return None


async def _some_of_everything(store: Store, episode_id: str) -> None:
    await _record_episode(store, f"{episode_id}_gone", turns=1)
    await _record_episode(store, episode_id, turns=2)
    await _erase(store, f"{episode_id}_gone")
    try:
        await asyncio.to_thread(
            store.database.alone,
            lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall(),
        )
    except StoreError as error:
        _say(f"refused {error.message}")
    await _acknowledged(f"call {episode_id}/2", _recorded(store, call_of(episode_id, 2)))


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
