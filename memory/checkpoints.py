"""Moves the write-ahead log into the database file beside the writer.

A checkpoint waits for the disk (measured: 5 ms for a thousand pages), and whoever waits for the
commit that would make it waits as well. So a thread of its own makes them, on a connection of its
own, while the writer goes on. It cannot cut the log, which under unbroken writes never comes to an
end where it could start again: that is the writer's part, which takes the same ``turn``, because
SQLite refuses a checkpoint while another is made.
"""

import logging
import sqlite3
import threading
from pathlib import Path

log = logging.getLogger(__name__)
EVERY_S = 2.0  # while there are commits; the size of the log's file does not tell what is in it


class Checkpoints:
    """A thread that makes checkpoints while there are commits.

    Args:
        path: the database, which exists.
        every_s: seconds from one to the next.
    """

    def __init__(self, path: Path, every_s: float = EVERY_S) -> None:
        self.turn = threading.Lock()
        """Held by whoever makes a checkpoint."""
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._every_s = every_s
        self._committed = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="denizen-checkpoints", daemon=True)
        self._thread.start()

    def after_commit(self) -> None:
        """Say that there is something to move."""
        self._committed.set()

    def move(self) -> None:
        """Move what is in the log, however long that takes; commits go on. For threads."""
        with self.turn:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            except sqlite3.Error as error:  # the log keeps what could not be moved
                log.warning("a checkpoint failed, and is tried again: %s", error)

    def close(self) -> None:
        """End the thread; the last connection that closes moves what is left."""
        self._closed.set()
        self._committed.set()
        self._thread.join()
        with self.turn:
            self._connection.close()

    def _run(self) -> None:
        while self._committed.wait() and not self._closed.wait(self._every_s):
            self._committed.clear()
            self.move()
