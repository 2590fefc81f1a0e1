"""The graded episodes most like a given one, by which the learner tells what was to be expected.

Exact, within the skill: every graded episode of it is compared, because a baseline that leaves out
a near one is wrong. Never practice, which is compared within its own group; never the episode
itself or its session, whose outcome it may share for other reasons than its task; never what is
kept from learning; never another tenant's; never what came after the time that is asked about.

Axes: ``N`` episodes of a skill, ``Q`` that are asked about, ``D`` dimensions.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np

from memory import rows
from memory.database import Database
from memory.index import Vectors, is_direction

Group: TypeAlias = tuple[int, str | None]  # a skill's episodes of one tenant
CHUNK = 4_096  # rows compared at once: 6 MB at 384 dimensions


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedNeighbour:
    """An episode of the same skill that has an outcome.

    Example:
        ``GradedNeighbour(episode_id="ep_0193-5c", distance=0.12, outcome=1.0)``
    """

    episode_id: str
    distance: float  # 1 - cosine, in [0, 2]
    outcome: float  # in [0, 1]


class Neighbours:
    """Finds graded neighbours.

    Args:
        database: where episodes and vectors are.
        embedder_id: whose vectors are compared; an episode without one has no neighbours and is
            none.
    """

    def __init__(self, database: Database, *, embedder_id: str) -> None:
        self._db = database
        self._embedder_id = embedder_id

    def nearest(
        self, episode_ids: Sequence[str], *, until: datetime, limit: int
    ) -> dict[str, list[GradedNeighbour]]:
        """Return for each episode its at most ``limit`` nearest, the nearest first.

        Those that began after ``until`` are left out: else one that comes in the middle of a cycle
        would take the place of another, and move what was to be expected.

        An episode that has no skill or no vector has none; asking for many of one skill at once
        reads the skill once.
        """
        groups: dict[Group, list[dict[str, Any]]] = defaultdict(list)
        for row in self._asked(episode_ids):
            groups[row["skill_id"], row["tenant"]].append(row)
        found: dict[str, list[GradedNeighbour]] = {id: [] for id in episode_ids}
        for group, asked in groups.items():
            found |= self._nearest_of(group, asked, until, limit)
        return found

    def _nearest_of(
        self, group: Group, asked: Sequence[dict[str, Any]], until: datetime, limit: int
    ) -> dict[str, list[GradedNeighbour]]:
        asked, queries_QD = _units(asked)
        best: dict[str, list[GradedNeighbour]] = {row["id"]: [] for row in asked}
        for chunk in self._graded(group, until):
            others, vectors_ND = _units(chunk)
            if not others or queries_QD.shape[1] != vectors_ND.shape[1]:
                continue
            distances_QN = 1.0 - np.clip(queries_QD @ vectors_ND.T, -1.0, 1.0)
            for row, distances_N in zip(asked, distances_QN, strict=True):
                nearest = _best(row, others, distances_N, limit)
                together = sorted([*best[row["id"]], *nearest], key=lambda one: one.distance)
                best[row["id"]] = together[:limit]
        return best

    def _asked(self, episode_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for start in range(0, len(episode_ids), CHUNK):
            ids = tuple(episode_ids[start : start + CHUNK])
            marks = ", ".join("?" * len(ids))
            yield from self._db.read(
                f"""SELECT e.id, e.session, e.tenant, e.skill_id, v.vector FROM episodes e
                    JOIN vectors v ON v.episode_id = e.id WHERE e.id IN ({marks})
                    AND e.skill_id IS NOT NULL AND v.embedder = ? AND v.vector IS NOT NULL""",
                (*ids, self._embedder_id),
            )

    def _graded(self, group: Group, until: datetime) -> Iterator[list[dict[str, Any]]]:
        """Yield the graded episodes of a skill and tenant, some at a time."""
        sql = """SELECT e.id, e.session, e.outcome_value, v.vector FROM episodes e
            JOIN vectors v ON v.episode_id = e.id
            WHERE e.skill_id = ? AND e.tenant IS ? AND e.id > ? AND e.source != 'practice'
            AND e.outcome_value IS NOT NULL AND e.learn AND e.withheld IS NULL
            AND e.created_at <= ? AND v.embedder = ? AND v.vector IS NOT NULL
            ORDER BY e.id LIMIT ?"""
        after = ""
        before = rows.encode_value(until)
        while found := self._db.read(sql, (*group, after, before, self._embedder_id, CHUNK)):
            yield found
            after = found[-1]["id"]


def _best(
    asked: Mapping[str, Any], others: Sequence[dict[str, Any]], distances_N: Any, limit: int
) -> Iterator[GradedNeighbour]:
    """Yield the nearest others that may be compared with what is asked about."""
    number = 0
    for n in np.argsort(distances_N, kind="stable"):
        row = others[n]
        is_same_session = asked["session"] is not None and row["session"] == asked["session"]
        if row["id"] == asked["id"] or is_same_session:
            continue
        if number == limit:
            return
        number += 1
        yield GradedNeighbour(
            episode_id=row["id"], distance=float(distances_N[n]), outcome=row["outcome_value"]
        )


def _units(found: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], Vectors]:
    """Return the rows whose vectors point somewhere, and those at length 1.

    Where sizes differ, as after a damaged write, that of the first counts.
    """
    size = len(found[0]["vector"]) if found else 0
    same = [row for row in found if len(row["vector"]) == size]
    joined = b"".join([row["vector"] for row in same])
    vectors_ND = np.frombuffer(joined, dtype="<f4").astype(np.float32)
    vectors_ND = vectors_ND.reshape(len(same), size // 4)
    norms_N = np.linalg.norm(vectors_ND, axis=1)
    good_N = is_direction(norms_N)
    kept = [row for row, is_good in zip(same, good_N, strict=True) if is_good]
    return kept, vectors_ND[good_N] / norms_N[good_N, None]
