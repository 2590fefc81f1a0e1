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
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import sqlite_utils
from pydantic import BaseModel, ConfigDict

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
}
Write = Callable[[Transaction], Any]

MAX_BATCH = 512  # writes in one commit; bounds how long the first of them waits


class MemoryConfig(BaseModel):
    """Settings of ``[memory]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    durability: Literal["process", "disk"] = "process"
    """What an acknowledged record survives: the death of the process, or of the machine (one fsync
    a commit).
    """
    max_queue: int = 10_000
    """Writes that may wait for the writer before callers are told to come back later."""


class Database:
    """One SQLite file in WAL mode.

    Raises:
        StoreError: the file cannot be opened or migrated.
    """

    def __init__(self, path: Path, config: MemoryConfig | None = None) -> None:
        self.path = path
        self._config = config or MemoryConfig()
        self._queue: queue.Queue[tuple[Write, Future[Any]] | None] = queue.Queue(
            self._config.max_queue
        )
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
            "journal_mode=WAL",
            f"synchronous={synchronous}",
            "foreign_keys=ON",
            "busy_timeout=5000",
            "journal_size_limit=67108864",
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
            try:
                self._queue.put_nowait((write, future))
            except queue.Full:
                raise UnavailableError("the database cannot keep up", retry_after_s=1) from None
        return future

    @property
    def backlog(self) -> int:
        """How many writes wait for the writer, about."""
        return self._queue.qsize()

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
            self._commit([item for item in batch if item is not None])

    def _commit(self, batch: list[tuple[Write, Future[Any]]]) -> None:
        done: list[tuple[Future[Any], Any]] = []
        try:
            with self._writer.atomic():
                for write, future in batch:
                    if not future.set_running_or_notify_cancel():
                        continue  # whoever asked is gone before it began
                    try:
                        with self._writer.atomic():
                            done.append((future, write(self._writer)))
                    except Exception as error:
                        if is_file_fault(error):
                            raise
                        future.set_exception(refused(error))
        except Exception as error:  # the writer must live on, whatever one batch did
            log.exception("commit of %d writes failed", len(batch))
            failure = StoreError(f"cannot write the database: {error}")
            for _, future in batch:
                with suppress(InvalidStateError):  # it is done, or its caller is gone
                    future.set_exception(failure)
            return
        for future, result in done:
            future.set_result(result)
        self._checkpoints.after_commit()


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
    return code is not None and code & 0xFF in FILE_FAULTS
