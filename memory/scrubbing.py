"""Erased text in files: the write-ahead log, free space in the database, and the service's logs.

``secure_delete`` overwrites what is deleted, in the database's pages; their former images stand in
the write-ahead log until it is cut off. A log line may quote what was erased; such bytes are
overwritten in place, as the files are open. Whether it all worked is looked up afterwards in every
file of the home folder. It does not know what was erased, but for a set of needles.
"""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from memory.database import Database
from memory.needle_file import FOLDER as NEEDLES
from memory.needles import Needles

NOT_RECORDS = ("adapters", "models", NEEDLES)
"""Folders of weights, gigabytes without text; and where it stands what is looked for."""
OWN_FOLDERS = ("logs", "work")
"""What the service writes for itself; any other file is the operator's, and is only searched."""
MASK = b"*"
CHUNK_BYTES = 2**20
"""Of a file that are looked at in one go: some milliseconds, between which others get a turn."""
CHECKPOINT_TRIES = 40
CHECKPOINT_PAUSE_S = 0.25  # ten seconds in all: queries end within milliseconds
MAX_VACUUM_BYTES = 2**31
"""A larger file is not rewritten, as no record is written for as long: about 10 s a gigabyte."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scrubbed:
    """What was done to the files, and what was still found in them.

    Example:
        ``Scrubbed(is_wal_cut=True, is_vacuumed=False, masked={"logs/service.log": 2}, found={})``
    """

    is_wal_cut: bool  # False: a reader held it open all the time; a later checkpoint cuts it
    is_vacuumed: bool  # the database was rewritten, as its free space still held something
    masked: dict[str, int]  # file -> places that were overwritten
    found: dict[str, int]  # file -> needles that still stand in it; other records may say the same


def scrub(
    database: Database, home: Path, texts: Collection[str], said_elsewhere: Callable[[str], bool]
) -> Scrubbed:
    """Make texts vanish from the files of a home folder; takes seconds, for a thread.

    Args:
        database: its file lies in the home folder.
        home: what is searched, folders of weights apart.
        texts: from ``needles_of``.
        said_elsewhere: whether another record says the same, which is no remnant.
    """
    needles = Needles([text.encode("utf-8", "replace") for text in texts])
    masked: dict[str, int] = {}
    for path in _files(home):
        name = path.relative_to(home)
        if name.parts[0] in OWN_FOLDERS and (num := _mask(path, needles)):
            masked[str(name)] = num
    is_cut = cut_wal(database)
    left = _found(database.path, needles)
    remnants = [one for one in left if not said_elsewhere(one.decode("utf-8"))]
    is_vacuumed = bool(remnants) and database.path.stat().st_size <= MAX_VACUUM_BYTES
    if is_vacuumed:
        database.alone(lambda db: db.execute("VACUUM"))
        is_cut = cut_wal(database)
        left = _found(database.path, needles)
    found = {database.path.name: len(left)} if left else {}
    for path in _files(home):
        if path != database.path and (num := len(_found(path, needles))):
            found[str(path.relative_to(home))] = num
    return Scrubbed(is_wal_cut=is_cut, is_vacuumed=is_vacuumed, masked=masked, found=found)


def cut_wal(database: Database) -> bool:
    """Move the write-ahead log into the database and cut it to nothing.

    Readers that look at an old state hold it open; it is tried again for some seconds, during which
    records are written. Returns whether it was cut.
    """

    def checkpoint(db: sqlite3.Connection) -> bool:
        db.execute("PRAGMA busy_timeout = 0")
        try:
            return bool(db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)
        finally:
            db.execute("PRAGMA busy_timeout = 5000")

    for _ in range(CHECKPOINT_TRIES):
        if database.alone(checkpoint):
            return True
        time.sleep(CHECKPOINT_PAUSE_S)
    return False


def _files(home: Path) -> Iterator[Path]:
    """Yield the files of a home folder, those of weights apart."""
    for path in sorted(home.rglob("*")):
        if path.relative_to(home).parts[0] not in NOT_RECORDS and path.is_file():
            yield path


def _found(path: Path, needles: Needles) -> set[bytes]:
    """Return the needles that stand in a file."""
    try:
        with path.open("rb") as file:
            return {needle for _, needle in _places(file, needles)}
    except OSError:  # it is gone
        return set()


def _mask(path: Path, needles: Needles) -> int:
    """Overwrite needles where they stand; return at how many places."""
    num = masked_to = 0
    try:
        with path.open("r+b") as file:
            for at, needle in _places(file, needles):
                end = at + len(needle)
                if end <= masked_to:  # it is part of a longer one
                    continue
                file.seek(at)
                file.write(MASK * len(needle))
                num, masked_to = num + 1, end
    except OSError:  # it is gone, or not ours to change
        return num
    return num


def _places(file: IO[bytes], needles: Needles) -> Iterator[tuple[int, bytes]]:
    """Yield where needles begin in a file, which is read piece by piece."""
    if not needles.longest:
        return
    start, held = 0, b""  # the file's content from ``start`` on
    while piece := _read(file, start + len(held)):
        held += piece
        is_last = len(piece) < CHUNK_BYTES
        decided = len(held) if is_last else max(0, len(held) - needles.longest + 1)
        for at, needle in needles.places(held):
            if at < decided:
                yield start + at, needle
        start, held = start + decided, held[decided:]


def _read(file: IO[bytes], at: int) -> bytes:
    file.seek(at)
    return file.read(CHUNK_BYTES)
