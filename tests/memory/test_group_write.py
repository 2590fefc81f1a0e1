import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from memory.database import Database, MemoryConfig, Transaction
from memory.errors import StoreError, UnavailableError
from memory.group_write import GroupWrite


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "denizen.db")
    database.write(lambda db: db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"))
    yield database
    database.close()


class Notes:
    """A group write of notes that counts how often the writer was asked."""

    def __init__(self, database: Database) -> None:
        self.sizes: list[int] = []
        self.writes = GroupWrite(database, self._insert)

    def _insert(self, db: Transaction, notes: Sequence[object]) -> None:
        self.sizes.append(len(notes))
        db.conn.executemany("INSERT INTO notes (text) VALUES (?)", [(note,) for note in notes])


def texts(database: Database) -> list[str]:
    return [row["text"] for row in database.read("SELECT text FROM notes ORDER BY id")]


def blocked(database: Database) -> threading.Event:
    """Let the writer wait until the event is set."""
    blocker = threading.Event()
    database.submit(lambda db: blocker.wait(5))
    return blocker


async def test_an_item_is_readable_when_its_future_is_done(database):
    await Notes(database).writes.add("kept")
    assert texts(database) == ["kept"]


async def test_items_that_wait_together_are_one_write(database):
    notes, blocker = Notes(database), blocked(database)
    waiting = [notes.writes.add(f"{n}") for n in range(50)]
    blocker.set()
    await asyncio.gather(*waiting)
    assert notes.sizes == [50]
    assert texts(database) == [f"{n}" for n in range(50)]


async def test_items_that_come_one_after_another_share_commits(database):
    notes = Notes(database)

    async def add(number: int) -> None:
        await asyncio.sleep(number / 10_000)
        await notes.writes.add(f"{number}")

    await asyncio.gather(*(add(number) for number in range(100)))
    assert sum(notes.sizes) == 100
    assert len(notes.sizes) < 50


async def test_an_item_that_cannot_be_written_fails_alone(database):
    notes, blocker = Notes(database), blocked(database)
    waiting = [notes.writes.add(item) for item in ("a", object(), "b")]
    blocker.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreError, type(None)]
    assert texts(database) == ["a", "b"]


async def test_a_fault_of_the_file_is_told_to_all_and_leaves_nothing(database):
    notes = Notes(database)
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))  # never below what exists
    blocker = blocked(database)
    waiting = [notes.writes.add("x" * 10_000_000), notes.writes.add("small")]
    blocker.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, StoreError) for result in results)
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    await notes.writes.add("room again")
    assert texts(database) == ["room again"]


async def test_a_caller_that_gave_up_takes_nothing_with_it(database):
    notes, blocker = Notes(database), blocked(database)
    given_up, kept = notes.writes.add("nobody waits"), notes.writes.add("kept")
    given_up.cancel()
    blocker.set()
    await kept
    assert texts(database) == ["nobody waits", "kept"]


async def test_a_full_queue_is_said_at_once_and_the_next_item_is_tried_again(tmp_path):
    database = Database(tmp_path / "denizen.db", MemoryConfig(max_queue=1))
    database.write(lambda db: db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"))
    notes, started, blocker = Notes(database), threading.Event(), threading.Event()
    database.submit(lambda db: (started.set(), blocker.wait(5)))
    started.wait(5)
    database.submit(lambda db: None)
    with pytest.raises(UnavailableError, match="cannot keep up"):
        await notes.writes.add("refused")
    blocker.set()
    while database.backlog:
        await asyncio.sleep(0.001)
    await notes.writes.add("taken")
    assert texts(database) == ["taken"]
    database.close()
