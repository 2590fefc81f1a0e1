"""The store: one database, and the readers and writers of its rows by subject."""

from pathlib import Path

from memory.cycle_store import CycleStore
from memory.database import Database, MemoryConfig
from memory.episode_store import EpisodeStore
from memory.errors import StoreError, UnavailableError
from memory.skill_store import SkillStore
from memory.task_store import TaskStore
from memory.version_store import VersionStore

WRITABLE_WITHIN_S = 5.0


class Store:
    """Everything that is remembered, by subject."""

    def __init__(self, path: Path, config: MemoryConfig | None = None) -> None:
        self.database = Database(path, config)
        self.episodes = EpisodeStore(self.database)
        self.tasks = TaskStore(self.database)
        self.skills = SkillStore(self.database)
        self.versions = VersionStore(self.database)
        self.cycles = CycleStore(self.database)

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
