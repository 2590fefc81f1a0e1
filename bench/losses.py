"""What was lost of what a process said before it ended.

A record that was refused because a sync failed may turn up after a crash: its bytes were written,
and nobody could say whether they would stay.
"""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from bench.child import say
from bench.recorder import call_of, finish_erasures, vectors_of
from memory.store import Store


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


def check(home: Path, told: Told, *, whole: bool = True) -> None:
    """Open what a killed process has left, and say what is wrong with it, a line each."""
    file = home / "denizen.db"
    if not file.exists():
        return
    store = Store(file)
    asyncio.run(finish_erasures(store))
    for problem in problems(store, told, whole=whole):
        say(problem)
    store.close()


def problems(store: Store, told: Told, *, whole: bool) -> Iterator[str]:
    """Say what is wrong with a store, a line each.

    Args:
        store: what was left.
        told: what was said of it.
        whole: read every acknowledged call, not only the newest.
    """
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
        if of_told[id] and of_episodes[id] not in (0, of_told[id]):
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
    vectors = vectors_of(store)
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
