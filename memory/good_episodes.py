"""The episodes of a skill that went well and are most like a task.

Of a skill the newest are compared one by one, whatever else lies nearer that nobody graded; older
ones are found as far as the index has them among the nearest of all. Never practice, never what
was kept from learning, never another tenant's. It does not know what becomes of them.

Axes: ``N`` episodes, ``D`` dimensions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from memory.database import Database
from memory.embed import Vector
from memory.index import is_direction
from memory.tenants import Sight

NEWEST = 1_000
"""Compared one by one: 1.5 MB of vectors at 384 dimensions, which take 15 ms of a core to read and
compare in a skill of 100,000 episodes of which 2,000 are graded."""
NEAREST = 50
"""Asked of the index, graded or not, where a skill has more than the newest."""
GOOD = """e.outcome_value >= ? AND e.source != 'practice' AND (e.learn OR e.withheld = 'tenant')
    AND e.id != ? AND v.embedder = ? AND v.vector IS NOT NULL"""


class Similar(Protocol):
    """One episode near to a task."""

    @property
    def episode_id(self) -> str:
        """Return which."""


class Search(Protocol):
    """What finds the episodes of a tenant whose tasks are like a given one."""

    def search(
        self, vector_D: Vector, *, limit: int, tenant: str | None = None
    ) -> Sequence[Similar]:
        """Return the nearest, the nearest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GoodEpisode:
    """An episode that went well.

    Example:
        ``GoodEpisode(episode_id="ep_0193-5c", outcome=1.0, similarity=0.8312)``
    """

    episode_id: str
    outcome: float  # in [0, 1]
    similarity: float  # cosine


class GoodEpisodes:
    """Finds them.

    Args:
        database: where they are.
        index: over the vectors of all episodes.
        embedder_id: whose vectors are compared.
        min_outcome: from which an episode went well.
        min_similarity: the cosine from which a task is like another.
    """

    def __init__(
        self,
        database: Database,
        *,
        index: Search,
        embedder_id: str,
        min_outcome: float,
        min_similarity: float,
    ) -> None:
        self._db = database
        self._index = index
        self._embedder_id = embedder_id
        self._min_outcome = min_outcome
        self._min_similarity = min_similarity

    def nearest(
        self, vector_D: Vector, *, skill_id: int, tenant: str | None, but: str
    ) -> list[GoodEpisode]:
        """Return those of a skill and tenant that are like a task, the most like first.

        Args:
            vector_D: float32 [D], the task's.
            skill_id: which skill's.
            tenant: whose.
            but: the episode that the task belongs to.
        """
        found = self._newest(skill_id, Sight(tenant), but)
        if len(found) == NEWEST:
            near = self._index.search(vector_D, limit=NEAREST, tenant=tenant)
            known = {row["id"] for row in found}
            ids = [one.episode_id for one in near if one.episode_id not in known]
            found += self._of(ids, skill_id, Sight(tenant), but)
        like = [one for one in _compared(vector_D, found) if one.similarity >= self._min_similarity]
        return sorted(like, key=lambda one: (-one.similarity, -one.outcome))

    def _newest(self, skill_id: int, sight: Sight, but: str) -> list[dict[str, Any]]:
        """Read a skill's newest; the index holds graded episodes alone, however few they are."""
        sql = f"""SELECT e.id, e.outcome_value, v.vector
            FROM episodes e INDEXED BY episodes_graded JOIN vectors v ON v.episode_id = e.id
            WHERE e.skill_id = ? AND {GOOD} AND {sight.clause} ORDER BY e.id DESC LIMIT ?"""
        return self._db.read(sql, (skill_id, *self._good(but), NEWEST))

    def _of(
        self, ids: Sequence[str], skill_id: int, sight: Sight, but: str
    ) -> list[dict[str, Any]]:
        marks = ", ".join("?" * len(ids))
        sql = f"""SELECT e.id, e.outcome_value, v.vector FROM episodes e
            JOIN vectors v ON v.episode_id = e.id
            WHERE e.id IN ({marks}) AND e.skill_id = ? AND {GOOD} AND {sight.clause}"""
        return self._db.read(sql, (*ids, skill_id, *self._good(but)))

    def _good(self, but: str) -> tuple[float, str, str]:
        return self._min_outcome, but, self._embedder_id


def _compared(vector_D: Vector, found: Sequence[dict[str, Any]]) -> Iterator[GoodEpisode]:
    """Yield the rows with their cosines; those whose vectors point nowhere are left out."""
    same = [row for row in found if len(row["vector"]) == 4 * len(vector_D)]
    joined = b"".join([row["vector"] for row in same])
    vectors_ND = np.frombuffer(joined, dtype="<f4").astype(np.float64).reshape(-1, len(vector_D))
    norms_N = np.linalg.norm(vectors_ND, axis=1)
    query_D = np.asarray(vector_D, dtype=np.float64)
    products_N = vectors_ND @ (query_D / np.linalg.norm(query_D))
    for n in np.flatnonzero(is_direction(norms_N)):
        cosine = float(np.clip(products_N[n] / norms_N[n], -1.0, 1.0))
        yield GoodEpisode(
            episode_id=same[n]["id"],
            outcome=same[n]["outcome_value"],
            similarity=round(cosine, 4),
        )
