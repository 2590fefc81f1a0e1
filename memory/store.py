"""The store: one database, and the readers and writers of its rows by subject."""

import time
from collections.abc import Collection
from pathlib import Path

from memory.cycle_store import CycleStore
from memory.database import Database, MemoryConfig
from memory.episode_store import EpisodeStore
from memory.errors import StoreError, UnavailableError
from memory.graded_episodes import GradedEpisodes
from memory.journal import Journal
from memory.judge_evidence import JudgeEvidence
from memory.practice_store import PracticeStore
from memory.prefix_episodes import PrefixEpisodes
from memory.recording import Recording
from memory.skill_store import SkillStore
from memory.task_store import TaskStore
from memory.version_store import VersionStore

WRITABLE_WITHIN_S = 5.0
DRAIN_TRIES = 40
DRAIN_PAUSE_S = 0.05  # two seconds in all: what is safe is written within some milliseconds


class Store:
    """Everything that is remembered, by subject."""

    def __init__(
        self, path: Path, config: MemoryConfig | None = None, *, learn_from: Collection[str] = ()
    ) -> None:
        """Open.

        Args:
            path: the database's file.
            config: how it is written.
            learn_from: the tenants that may teach, besides the default tenant.
        """
        self.database = Database(path, config)
        self._journal = _journal_beside(path, config or MemoryConfig())
        recording = Recording()
        try:
            self.episodes = EpisodeStore(self.database, recording, self._journal)
        except (StoreError, OSError) as error:
            self.close()
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"cannot read answers beside the database {path}: {error}") from error
        self.practice = PracticeStore(self.database, recording)
        self.graded = GradedEpisodes(self.database, learn_from)
        self.prefixes = PrefixEpisodes(self.database, learn_from)
        self.tasks = TaskStore(self.database, learn_from)
        self.skills = SkillStore(self.database)
        self.versions = VersionStore(self.database)
        self.cycles = CycleStore(self.database)
        self.judge_evidence = JudgeEvidence(self.database)

    def is_writable(self) -> bool:
        """Say whether a write goes through to a commit in time; readiness asks."""
        try:
            touch = self.database.submit(lambda db: db.execute("PRAGMA user_version = 0"))
            touch.result(WRITABLE_WITHIN_S)
        except (StoreError, UnavailableError, TimeoutError):
            return False
        return True

    def drain_journal(self) -> bool:
        """Have what stands in the database leave the journal's files; say whether it did.

        For threads. New answers go on; what is not in the database yet stays.
        """
        journal = self._journal
        if journal is None:
            return True
        upto = journal.next_number
        for _ in range(DRAIN_TRIES):
            self.database.alone(lambda _: journal.turn())
            if not journal.holds_before(upto):
                return True
            time.sleep(DRAIN_PAUSE_S)
        return False

    def close(self) -> None:
        """Commit what waits and close."""
        self.database.close()
        if self._journal is not None:
            self._journal.close()


def _journal_beside(path: Path, config: MemoryConfig) -> Journal | None:
    """Return what keeps answers until they are in the file; None where only the disk may."""
    if config.durability == "disk":
        return None
    try:
        return Journal(path.with_name(f"{path.name}-answers"))
    except OSError as error:
        raise StoreError(f"cannot keep answers beside the database {path}: {error}") from error
