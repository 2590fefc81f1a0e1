import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
import sqlite_utils

from memory.database import MAX_WAL_BYTES, Database, MemoryConfig
from memory.errors import StoreError, UnavailableError
from memory.schema import migrations


@pytest.fixture
def database(tmp_path: Path):
    database = Database(tmp_path / "denizen.db")
    database.write(lambda db: db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"))
    yield database
    database.close()


def add_note(text: str):
    return lambda db: db.execute("INSERT INTO notes (text) VALUES (?)", (text,))


def texts(database: Database) -> list[str]:
    return [row["text"] for row in database.read("SELECT text FROM notes ORDER BY id")]


def test_a_write_is_readable_when_it_returns(database):
    database.write(add_note("kept"))
    assert texts(database) == ["kept"]


def test_a_write_that_fails_takes_no_other_of_its_batch_with_it(database):
    blocker = threading.Event()
    database.submit(lambda db: blocker.wait(5))  # so that the next three share a batch
    good, bad, also_good = (
        database.submit(add_note("a")),
        database.submit(lambda db: db.execute("INSERT INTO nowhere VALUES (1)")),
        database.submit(add_note("b")),
    )
    blocker.set()
    good.result(5)
    also_good.result(5)
    with pytest.raises(StoreError, match="nowhere"):
        bad.result(5)
    assert texts(database) == ["a", "b"]


def test_what_a_failed_write_did_before_it_failed_is_undone(database):
    def half(db: sqlite_utils.Database) -> None:
        add_note("half")(db)
        raise ValueError("changed its mind")

    with pytest.raises(ValueError, match="changed its mind"):
        database.write(half)
    assert texts(database) == []


def test_many_writers_at_once_lose_nothing(database):
    threads = [
        threading.Thread(target=lambda i=i: [database.write(add_note(f"{i}")) for _ in range(50)])
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts(database)) == 400


async def test_a_cancelled_caller_does_not_stop_the_writer(database):
    blocker = threading.Event()
    database.submit(lambda db: blocker.wait(5))
    waiting = asyncio.create_task(database.write_async(add_note("dropped or kept")))
    await asyncio.sleep(0)
    waiting.cancel()
    blocker.set()
    await asyncio.gather(waiting, return_exceptions=True)
    await database.write_async(add_note("after"))
    assert texts(database)[-1] == "after"


def test_a_full_queue_is_said_and_not_waited_for(tmp_path):
    database = Database(tmp_path / "denizen.db", MemoryConfig(max_queue=1))
    blocker, started = threading.Event(), threading.Event()
    database.submit(lambda db: (started.set(), blocker.wait(5)))
    started.wait(5)
    database.submit(lambda db: None)
    with pytest.raises(UnavailableError, match="cannot keep up"):
        database.submit(lambda db: None)
    blocker.set()
    database.close()


def test_closing_commits_what_waits(tmp_path):
    database = Database(tmp_path / "denizen.db")
    database.submit(lambda db: db.execute("CREATE TABLE notes (text TEXT)"))
    for i in range(20):
        database.submit(add_note(f"{i}"))
    database.close()
    connection = sqlite3.connect(tmp_path / "denizen.db")
    assert connection.execute("SELECT COUNT(*) FROM notes").fetchone() == (20,)
    connection.close()


def test_readers_cannot_write(database):
    with pytest.raises(StoreError, match="readonly"):
        database.read("INSERT INTO notes (text) VALUES ('x')")


def test_a_full_disk_is_a_store_error_and_writing_goes_on_when_there_is_room_again(database):
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))  # never below what exists
    with pytest.raises(StoreError, match="full"):
        database.write(add_note("x" * 10_000_000))
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    database.write(add_note("room again"))
    assert texts(database) == ["room again"]


def test_a_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "denizen.db").write_text(
        "no database at all, but long enough to be read as one" * 9
    )
    with pytest.raises(StoreError, match=r"denizen\.db"):
        Database(tmp_path / "denizen.db")


@pytest.mark.parametrize("stop_before", [m.name for m in migrations._migrations[1:]])
def test_migrations_run_from_every_earlier_schema(tmp_path, stop_before):
    path = tmp_path / "denizen.db"
    early = sqlite_utils.Database(path)
    migrations.apply(early, stop_before=stop_before)
    early.close()
    database = Database(path)
    tables = {row["name"] for row in database.read("SELECT name FROM sqlite_master")}
    assert {"episodes", "tasks", "adapter_versions", "vectors"} <= tables
    database.close()


def test_a_value_that_sqlite_cannot_store_fails_alone_and_the_writer_goes_on(database):
    with pytest.raises(StoreError, match="refused"):
        database.write(lambda db: db.execute("INSERT INTO notes (text) VALUES (?)", (object(),)))
    database.write(add_note("after"))
    assert texts(database) == ["after"]


def test_readers_of_threads_that_ended_are_closed(database):
    for _ in range(20):
        thread = threading.Thread(target=texts, args=(database,))
        thread.start()
        thread.join()
    texts(database)
    assert len(database._readers) <= 2


def test_a_write_after_closing_is_refused_and_does_not_wait_for_ever(tmp_path):
    database = Database(tmp_path / "denizen.db", MemoryConfig())
    database.close()
    with pytest.raises(StoreError, match="closed"):
        database.write(lambda db: None)


def test_p51_a_log_that_a_reader_held_long_is_cut_when_it_ends(database):
    reader = sqlite3.connect(database.path)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM notes").fetchone()
    for _ in range(70):
        database.write(add_note("x" * 2**20))
    assert database.wal_bytes > MAX_WAL_BYTES
    assert not database.bound_wal()
    reader.close()
    assert database.bound_wal()
    assert database.wal_bytes <= MAX_WAL_BYTES
    assert len(texts(database)) == 70


def test_a_log_is_cut_however_busy_the_thread_is_that_makes_checkpoints(database, monkeypatch):
    monkeypatch.setattr("memory.database.MAX_WAL_BYTES", 0)
    done = threading.Event()

    def move() -> None:
        while not done.is_set():
            database._checkpoints.move()

    mover = threading.Thread(target=move)
    mover.start()
    for _ in range(30):
        database.write(add_note("x" * 2**18))
        assert database.bound_wal()
    done.set()
    mover.join()


@pytest.fixture
def small_log(tmp_path, monkeypatch):
    """Return a database whose log is cut past 4 MiB."""
    monkeypatch.setattr("memory.database.MAX_WAL_BYTES", 2**20)
    monkeypatch.setattr("memory.database.MUST_CUT_BYTES", 2**22)
    database = Database(tmp_path / "denizen.db")
    database.write(lambda db: db.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)"))
    yield database
    database.close()


def test_a_log_stays_bounded_under_writes_without_a_pause(small_log):
    sizes = []
    for _ in range(100):
        small_log.write(add_note("x" * 2**18))
        sizes.append(small_log.wal_bytes)
    assert max(sizes) < 6 * 2**20
    assert len(texts(small_log)) == 100


def test_a_reader_in_the_way_is_not_waited_for_after_each_commit(small_log, monkeypatch):
    tries: list[int] = []
    monkeypatch.setattr(
        "memory.database._truncate_wal", lambda _: tries.append(small_log.wal_bytes)
    )
    for _ in range(40):
        small_log.write(add_note("x" * 2**18))
    small_log.write(lambda db: None)  # the last try comes after its commit was told
    assert 4 <= len(tries) <= 8  # 10 MiB: at 4 MiB, then at each further one


def test_p51_fifty_writers_and_another_program_are_never_told_that_the_database_is_locked(database):
    reader = sqlite3.connect(database.path)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM notes").fetchone()
    failures: list[Exception] = []

    def write_here(number: int) -> None:
        def read_then_write(db: sqlite_utils.Database) -> None:
            list(db.query("SELECT COUNT(*) FROM notes"))
            add_note(f"here {number}")(db)

        try:
            for _ in range(20):
                database.write(read_then_write)
        except Exception as error:
            failures.append(error)

    def write_elsewhere() -> None:
        other = sqlite3.connect(database.path, timeout=5, isolation_level=None)
        try:
            for _ in range(50):
                other.execute("BEGIN IMMEDIATE")
                other.execute("INSERT INTO notes (text) VALUES ('elsewhere')")
                other.execute("COMMIT")
        except Exception as error:
            failures.append(error)
        other.close()

    threads = [threading.Thread(target=write_here, args=(n,)) for n in range(50)]
    threads.append(threading.Thread(target=write_elsewhere))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reader.close()
    assert not failures
    assert len(texts(database)) == 50 * 20 + 50


def test_a_write_whose_transaction_was_undone_by_another_is_not_acknowledged(database):
    blocker = threading.Event()
    database.submit(lambda db: blocker.wait(5))
    kept = database.submit(add_note("undone"))
    spoiler = database.submit(lambda db: db.execute("ROLLBACK").fetchone() or 1 / 0)
    blocker.set()
    for future in (kept, spoiler):
        with pytest.raises(StoreError, match="cannot write"):
            future.result(5)
    database.write(add_note("after"))
    assert texts(database) == ["after"]
