"""A store with episodes that are sorted as the service sorts them, and an embedder for it."""

import zlib
from collections.abc import Sequence

import numpy as np

from memory import rows
from memory.database import Transaction
from memory.embed import Embedding, Vector
from memory.regrouping import Regrouping
from memory.skills import SkillsConfig
from memory.sorter import Sorter
from memory.store import Store
from memory.types import Episode
from tests import records

CONFIG = SkillsConfig(min_founders=3)


class WordEmbedder:
    """A text lies where its first word does, a little aside by its other words."""

    dimension = 16

    def __init__(self, id: str = "words") -> None:
        self.id = id
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        self.asked += texts
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> Embedding:
        words = text.split()
        if not words:
            return Embedding(vector_D=None, reason="empty text")
        if words[0] == "nan":
            return Embedding(vector_D=None, reason="the embedding is not finite")
        vector_D = self._place(words[0]) + np.float32(0.1) * self._place(text)
        unit_D = np.asarray(vector_D / np.linalg.norm(vector_D), dtype=np.float32)
        return Embedding(vector_D=unit_D)

    def _place(self, text: str) -> Vector:
        seed = zlib.crc32(f"{self.id} {text}".encode("utf-8", "replace"))
        vector_D = np.random.default_rng(seed).normal(size=self.dimension).astype(np.float32)
        return np.asarray(vector_D / np.linalg.norm(vector_D), dtype=np.float32)


class Desk:
    """Sorts what it is given at once."""

    def __init__(self, store: Store, embedder: WordEmbedder | None = None) -> None:
        self.store = store
        self.embedder = embedder or WordEmbedder()
        self.sorter = Sorter(store, self.embedder, CONFIG)
        self.regrouping = Regrouping(store, self.sorter, CONFIG)

    def record(self, *texts: str, tenant: str | None = None, **fields: object) -> list[str]:
        """Record an episode a text and sort them; return their ids."""
        count = self.store.database.read("SELECT COUNT(*) AS n FROM episodes")[0]["n"]
        episodes = [
            records.episode(
                id=f"ep_{count + n:04d}",
                created_at=records.later(count + n),
                task_text=text,
                tenant=tenant,
                **fields,
            )
            for n, text in enumerate(texts)
        ]
        encoded = [rows.encode(one) for one in episodes]
        self.store.database.write(lambda db: rows.insert_all(db, "episodes", encoded))
        self.sort(episodes)
        return [episode.id for episode in episodes]

    def sort(self, episodes: Sequence[Episode]) -> None:
        """Find a skill for each and store it, as the intake does."""
        found = self.sorter.sort_episodes(episodes, [[one.task_text] for one in episodes])

        def write(db: Transaction) -> int:
            self.sorter.check(db)
            for one in found:
                self.sorter.save_episode(db, one)
            return self.sorter.seen(db)

        self.sorter.committed(self.store.database.write(write))

    def skills(self) -> dict[str, int | None]:
        """Return each episode's skill."""
        found = self.store.database.read("SELECT id, skill_id FROM episodes ORDER BY id")
        return {row["id"]: row["skill_id"] for row in found}
