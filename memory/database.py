"""The SQLite file: one writer thread with group commit, and readers that never block it.

Writes are functions over the connection; those that wait together are committed together, each
inside a savepoint of its own, so that one that fails takes no other with it. It does not know any
table.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import sqlite_utils
from pydantic import BaseModel, ConfigDict, Field

from memory.checkpoints import Checkpoints
from memory.errors import StoreError, UnavailableError
from memory.schema import migrations

log = logging.getLogger(__name__)
T = TypeVar("T")
Transaction: TypeAlias = sqlite_utils.Database
"""The writer's connection inside a write: what runs on it is committed or undone as a whole."""
FILE_FAULTS = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
}
"""After these SQLite may have undone the whole transaction, not only the statement."""
Write = Callable[[Transaction], Any]

MAX_WAL_BYTES = 64 * 2**20
"""Past this the write-ahead log is cut by the next ``bound_wal``, unless a reader needs it."""
MUST_CUT_BYTES = 4 * MAX_WAL_BYTES
"""Past this the writer cuts the log at once, and the next commits wait for it: where this much
comes between two calls of ``bound_wal`` the disk cannot keep up. The log grows past it only while a
reader needs it.
"""
MAX_BATCH = 512  # writes in one commit; bounds how long the first of them waits


class MemoryConfig(BaseModel):
    """Settings of ``[memory]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    durability: Literal["process", "disk"] = "process"
    """What an answered call's record survives: the death of the process, or of the machine. For the
    first an answer waits for nothing: its record stands in a journal beside the database until its
    commit, some milliseconds later. For the second it waits for the commit and one fsync.
    """
    max_queue: int = 10_000
    """Writes that may wait for the writer before callers are told to come back later; of calls of
    500 tokens one core writes as many in some three seconds (``bench/memory.py``)."""
    keep_days: float | None = Field(default=None, gt=0)
    """Days after its last call or feedback that an episode is kept, with all that was made of it:
    grades, feedback, its vector, the task derived from it and practice on that. Without: for ever.
    Versions that learned from it stay as they are; to undo that, erase it.
    """
    keep_practice_days: float | None = Field(default=None, gt=0)
    """The same for practice alone, which takes the most room and can be had again."""
    max_gib: float | None = Field(default=None, gt=0)
    """Room for the record in the database. Past it whole episodes go, the oldest first: practice,
    then those that nobody gave feedback on and that made no task, then the others. The file does
    not shrink; what became free in it is used again.
    """


class Database:
    """One SQLite file in WAL mode.

    Raises:
        StoreError: the file cannot be opened or migrated.
    """

    def __init__(self, path: Path, config: MemoryConfig | None = None) -> None:
        self.path = path
        self._config = config or MemoryConfig()
        self._queue: queue.SimpleQueue[tuple[Write, Future[Any]] | None] = queue.SimpleQueue()
        self._wal = path.with_name(f"{path.name}-wal")
        self._must_cut_bytes = MUST_CUT_BYTES  # more where a reader was in the way
        self._local = threading.local()
        self._readers: dict[threading.Thread, sqlite3.Connection] = {}
        self._opening = threading.Lock()
        try:
            self._writer = self._open_writer()
        except sqlite3.Error as error:
            raise StoreError(f"cannot open the database {path}: {error}") from error
        self._checkpoints = Checkpoints(path)
        self._thread = threading.Thread(target=self._run, name="denizen-writer", daemon=True)
        self._closing = threading.Lock()
        self._is_closed = False
        self._thread.start()

    def _open_writer(self) -> sqlite_utils.Database:
        connection = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        synchronous = "FULL" if self._config.durability == "disk" else "NORMAL"
        for pragma in (
            "page_size=8192",  # in a new file: of records of 1 to 3 KB, 4,096 bytes hold few
            "journal_mode=WAL",
            f"synchronous={synchronous}",
            "foreign_keys=ON",
            "busy_timeout=5000",
            f"journal_size_limit={MAX_WAL_BYTES}",
            "secure_delete=ON",
            "wal_autocheckpoint=0",  # a thread of its own does it
        ):
            connection.execute(f"PRAGMA {pragma}")
        db = sqlite_utils.Database(connection)
        migrations.apply(db)
        return db

    def submit(self, write: Callable[[Transaction], T]) -> "Future[T]":
        """Queue a write; the future resolves after its commit.

        Raises:
            UnavailableError: the queue is full.
            StoreError: the database is closed.
        """
        future: Future[T] = Future()
        with self._closing:
            if self._is_closed:  # nobody would ever answer
                raise StoreError("the database is closed")
            if self._queue.qsize() >= self._config.max_queue:
                raise UnavailableError("the database cannot keep up", retry_after_s=1)
            self._queue.put((write, future))
        return future

    @property
    def backlog(self) -> int:
        """How many writes wait for the writer, about."""
        return self._queue.qsize()

    def alone(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work on the writer's connection outside a transaction, and wait; for threads.

        For what SQLite does not do inside one: a checkpoint, ``VACUUM``.
        """
        return self.submit(_Alone(work)).result()

    @property
    def wal_bytes(self) -> int:
        """The size of the write-ahead log."""
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    def bound_wal(self) -> bool:
        """Cut a log that is too long, unless a reader is in the way; say whether it is bounded.

        What is in it is moved first, while commits go on; they wait while the little is moved that
        came meanwhile. For threads.
        """
        if self.wal_bytes <= MAX_WAL_BYTES:
            return True
        self._checkpoints.move()
        return self.alone(self._cut_wal)

    def write(self, write: Callable[[Transaction], T]) -> T:
        """Run a write and wait for its commit; for threads, never for the event loop."""
        return self.submit(write).result()

    async def write_async(self, write: Callable[[Transaction], T]) -> T:
        """Run a write and await its commit."""
        return await asyncio.wrap_future(self.submit(write))

    def read(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        """Run one query on this thread's reader and return its rows."""
        reader = getattr(self._local, "reader", None)
        if reader is None:
            reader = self._local.reader = self._open_reader()
        try:
            return [dict(row) for row in reader.execute(sql, parameters)]
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the database: {error}") from error

    def _open_reader(self) -> sqlite3.Connection:
        reader = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
        reader.row_factory = sqlite3.Row
        reader.execute("PRAGMA busy_timeout=5000")
        reader.execute("PRAGMA query_only=ON")
        with self._opening:  # threads of a pool come and go; a reader goes with its thread
            for thread in [thread for thread in self._readers if not thread.is_alive()]:
                self._readers.pop(thread).close()
            self._readers[threading.current_thread()] = reader
        return reader

    def close(self) -> None:
        """Commit what waits and close every connection."""
        with self._closing:
            self._is_closed = True
        self._queue.put(None)
        self._thread.join()
        self._checkpoints.close()
        for reader in self._readers.values():
            reader.close()
        self._writer.close()

    def _run(self) -> None:
        """Take what waits, commit it together, tell who asked; until closed."""
        closing = False
        while not closing:
            batch = [self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            closing = None in batch
            items = [item for item in batch if item is not None]
            if writes := [item for item in items if not isinstance(item[0], _Alone)]:
                self._commit(writes)
            for work, future in items:
                if isinstance(work, _Alone):
                    self._do_alone(work, future)

    def _do_alone(self, work: "_Alone[Any]", future: "Future[Any]") -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work(self._writer))
        except Exception as error:  # the writer must live on
            future.set_exception(refused(error))

    def _commit(self, batch: list[tuple[Write, Future[Any]]]) -> None:
        # Whoever asked may be gone before it begins.
        batch = [one for one in batch if one[1].set_running_or_notify_cancel()]
        done: list[tuple[Future[Any], Any]] = []
        try:
            with _immediate(self._writer):
                if len(batch) == 1:  # it needs no savepoint: the transaction is undone with it
                    done = [(future, write(self._writer)) for write, future in batch]
                else:
                    done = self._write_each(batch)
        except Exception as error:  # the writer must live on, whatever one batch did
            failure: Exception = StoreError(f"cannot write the database: {error}")
            if len(batch) == 1 and not is_file_fault(error):
                failure = refused(error)
            else:
                log.exception("commit of %d writes failed", len(batch))
            for _, future in batch:
                with suppress(InvalidStateError):  # it has been refused
                    future.set_exception(failure)
            return
        for future, result in done:
            future.set_result(result)
        self._checkpoints.after_commit()
        if self.wal_bytes > self._must_cut_bytes:
            self._cut_wal(self._writer.conn)

    def _write_each(self, batch: list[tuple[Write, Future[Any]]]) -> list[tuple[Future[Any], Any]]:
        """Run writes of which one that fails takes no other with it; return what was done."""
        done: list[tuple[Future[Any], Any]] = []
        for write, future in batch:
            try:
                with self._writer.atomic():
                    done.append((future, write(self._writer)))
            except Exception as error:
                if is_file_fault(error) or not self._writer.conn.in_transaction:
                    raise  # what the others of the batch did is undone too
                future.set_exception(refused(error))
        return done

    def _cut_wal(self, writer: sqlite3.Connection) -> bool:
        """Empty the log when a checkpoint that is being made has ended; say whether it is empty."""
        with self._checkpoints.turn:
            try:
                is_cut = _truncate_wal(writer)
            except sqlite3.Error as error:  # what is in the log is safe there
                log.warning("the write-ahead log cannot be cut: %s", error)
                is_cut = False
        held = 0 if is_cut else self.wal_bytes  # not tried again after each commit
        self._must_cut_bytes = max(MUST_CUT_BYTES, held + MAX_WAL_BYTES)
        return is_cut


def _truncate_wal(writer: sqlite3.Connection) -> bool:
    """Empty the log; the writer never waits for a reader."""
    [[patience_ms]] = writer.execute("PRAGMA busy_timeout")
    writer.execute("PRAGMA busy_timeout = 0")
    try:
        [[is_busy, *_]] = writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        writer.execute(f"PRAGMA busy_timeout = {patience_ms}")
    return not is_busy


class _Alone(Generic[T]):
    """Work on the writer's connection that is no write of a transaction."""

    def __init__(self, work: Callable[[sqlite3.Connection], T]) -> None:
        self._work = work

    def __call__(self, db: Transaction) -> T:
        return self._work(db.conn)


@contextmanager
def _immediate(db: Transaction) -> Iterator[None]:
    """Run a transaction that has the write lock from its beginning.

    One that reads first and then wants to write is refused without waiting, where another program
    wrote in between.
    """
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.rollback()  # nothing happens where the error has done it
        raise


def refused(error: Exception) -> Exception:
    """Return what a caller sees of a write that failed alone."""
    if not isinstance(error, sqlite3.Error):
        return error
    wrapped = StoreError(f"the database refused the write: {error}")
    wrapped.__cause__ = error
    return wrapped


def is_file_fault(error: Exception) -> bool:
    """Tell a fault of the file, which the whole batch shares, from one of a single write."""
    code = getattr(error, "sqlite_errorcode", None)  # Python's own errors carry none
    if isinstance(error, MemoryError):  # how Python says SQLITE_NOMEM
        return True
    return code is not None and code & 0xFF in FILE_FAULTS
