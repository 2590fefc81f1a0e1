import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from memory import group_write
from memory.database import Database, MemoryConfig, Transaction
from memory.errors import StoreError, UnavailableError
from memory.group_write import GroupWrite
from memory.journal import Journal


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

    def add(self, note: object) -> "asyncio.Future[None]":
        return self.writes.add(note).written

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
    await Notes(database).add("kept")
    assert texts(database) == ["kept"]


async def test_items_that_wait_together_are_one_write(database):
    notes, blocker = Notes(database), blocked(database)
    waiting = [notes.add(f"{n}") for n in range(50)]
    blocker.set()
    await asyncio.gather(*waiting)
    assert notes.sizes == [50]
    assert texts(database) == [f"{n}" for n in range(50)]


async def test_items_that_come_one_after_another_share_commits(database):
    notes = Notes(database)

    async def add(number: int) -> None:
        await asyncio.sleep(number / 10_000)
        await notes.add(f"{number}")

    await asyncio.gather(*(add(number) for number in range(100)))
    assert sum(notes.sizes) == 100
    assert len(notes.sizes) < 50


async def test_an_item_that_cannot_be_written_fails_alone(database):
    notes, blocker = Notes(database), blocked(database)
    waiting = [notes.add(item) for item in ("a", object(), "b")]
    blocker.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreError, type(None)]
    assert texts(database) == ["a", "b"]


async def test_a_fault_of_the_file_is_told_to_all_and_leaves_nothing(database):
    notes = Notes(database)
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))  # never below what exists
    blocker = blocked(database)
    waiting = [notes.add("x" * 10_000_000), notes.add("small")]
    blocker.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, StoreError) for result in results)
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    await notes.add("room again")
    assert texts(database) == ["room again"]


async def test_a_caller_that_gave_up_takes_nothing_with_it(database):
    notes, blocker = Notes(database), blocked(database)
    given_up, kept = notes.add("nobody waits"), notes.add("kept")
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
        await notes.add("refused")
    blocker.set()
    while database.backlog:
        await asyncio.sleep(0.001)
    await notes.add("taken")
    assert texts(database) == ["taken"]
    database.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "notes")
    journal.clear()
    yield journal
    journal.close()


def journaled(database: Database, journal: Journal) -> GroupWrite[str]:
    def insert(db: Transaction, notes: Sequence[str]) -> None:
        db.conn.executemany("INSERT INTO notes (text) VALUES (?)", [(note,) for note in notes])

    return GroupWrite(database, insert, journal=journal, spell=str.encode)


async def test_what_the_journal_keeps_is_safe_before_its_commit_and_gone_from_it_after(
    database, journal, tmp_path
):
    writes, blocker = journaled(database, journal), blocked(database)
    kept = writes.add("kept")
    assert kept.safe.done()
    assert not kept.written.done()
    assert Journal(tmp_path / "notes").left() == [b"kept"]
    blocker.set()
    await writes.settled()
    assert texts(database) == ["kept"]
    assert Journal(tmp_path / "notes").left() == []


async def test_who_asks_for_what_was_added_waits_until_it_can_be_read(database, journal):
    writes, blocker = journaled(database, journal), blocked(database)
    writes.add("first")
    waiting = asyncio.ensure_future(writes.settled())
    await asyncio.sleep(0)
    writes.add("later")
    assert not waiting.done()
    blocker.set()
    await waiting
    assert "first" in texts(database)
    await writes.settled()
    assert texts(database) == ["first", "later"]
    assert writes.is_settled


async def test_too_much_ahead_of_the_file_has_to_wait_for_its_commit(
    database, journal, monkeypatch
):
    monkeypatch.setattr(group_write, "MAX_AHEAD", 2)
    writes, blocker = journaled(database, journal), blocked(database)
    kept = [writes.add(f"{n}") for n in range(3)]
    assert [one.safe.done() for one in kept] == [True, True, False]
    blocker.set()
    await kept[2].safe
    assert texts(database) == ["0", "1", "2"]


async def test_what_is_safe_is_written_when_the_file_can_be_written_again(
    database, journal, monkeypatch
):
    monkeypatch.setattr(group_write, "RETRY_S", 0.05)
    writes = journaled(database, journal)
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))
    kept = writes.add("x" * 100_000)
    await writes.settled()
    assert writes.trouble is not None
    assert kept.safe.done()
    assert not kept.written.done()
    await writes.add("small").written  # for which there is room
    assert writes.trouble is not None
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    await kept.written
    assert writes.trouble is None
    assert {*texts(database)} == {"x" * 100_000, "small"}


async def test_an_item_that_never_can_be_written_is_told_and_leaves_the_journal(
    database, journal, tmp_path
):
    def refuse(db: Transaction, notes: Sequence[str]) -> None:
        raise TypeError("no column for that")

    writes = GroupWrite(database, refuse, journal=journal, spell=str.encode)
    kept = writes.add("bad")
    with pytest.raises(TypeError):
        await kept.written
    assert writes.trouble is None
    assert Journal(tmp_path / "notes").left() == []
