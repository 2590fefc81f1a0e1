import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.checkpoints import Checkpoints

CHUNK = 2**20
FOUR = 4 * CHUNK


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "wal_autocheckpoint=0"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("CREATE TABLE blobs (blob BLOB)")
    yield connection
    connection.close()


def write(writer: sqlite3.Connection, num_bytes: int) -> None:
    for _ in range(num_bytes // CHUNK):
        writer.execute("INSERT INTO blobs VALUES (zeroblob(?))", (CHUNK,))


def becomes(path: Path, num_bytes: int) -> bool:
    deadline = time.monotonic() + 10
    while path.stat().st_size < num_bytes:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_log_that_has_grown_is_moved_into_the_database(path, writer):
    checkpoints = Checkpoints(path, every_s=0.05)
    try:
        write(writer, FOUR)
        assert path.stat().st_size < CHUNK
        checkpoints.after_commit()
        assert becomes(path, FOUR)
    finally:
        checkpoints.close()


def test_without_a_commit_nothing_is_moved(path, writer):
    checkpoints = Checkpoints(path, every_s=0.01)
    write(writer, FOUR)
    time.sleep(0.1)
    checkpoints.close()
    assert path.stat().st_size < CHUNK


def test_a_log_that_was_moved_starts_again_and_is_moved_again(path, writer):
    checkpoints = Checkpoints(path, every_s=0.05)
    try:
        for num_rounds in (1, 2, 3):
            write(writer, FOUR)
            checkpoints.after_commit()
            assert becomes(path, num_rounds * FOUR)
            with checkpoints.turn:  # the file has its size before the log counts as moved
                pass
    finally:
        checkpoints.close()
    assert path.with_name("some.db-wal").stat().st_size < 3 * FOUR


def test_a_reader_in_the_way_breaks_nothing(path, writer):
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM blobs").fetchall()
    checkpoints = Checkpoints(path, every_s=0.05)
    try:
        write(writer, FOUR)
        checkpoints.after_commit()
        write(writer, CHUNK)
        reader.execute("COMMIT")
        write(writer, FOUR)
        checkpoints.after_commit()
        assert becomes(path, FOUR)
    finally:
        checkpoints.close()
        reader.close()
