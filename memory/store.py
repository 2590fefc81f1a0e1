"""The store: one database, and the readers and writers of its rows by subject."""

from collections.abc import Collection
from pathlib import Path

from memory.cycle_store import CycleStore
from memory.database import Database, MemoryConfig
from memory.episode_store import EpisodeStore
from memory.errors import StoreError, UnavailableError
from memory.graded_episodes import GradedEpisodes
from memory.judge_evidence import JudgeEvidence
from memory.skill_store import SkillStore
from memory.task_store import TaskStore
from memory.version_store import VersionStore

WRITABLE_WITHIN_S = 5.0


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
        self.episodes = EpisodeStore(self.database)
        self.graded = GradedEpisodes(self.database, learn_from)
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

    def close(self) -> None:
        """Commit what waits and close."""
        self.database.close()
