"""Live episodes with an outcome that may be learned from, and what decides whether they are.

Never practice, never what is kept from learning, never a tenant's that may not teach. It does not
know how an outcome is compared, nor when it is too old.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memory import rows
from memory.database import Database
from memory.version_store import BASE

GRADED = """e.source != 'practice' AND e.outcome_value IS NOT NULL AND e.learn
    AND e.withheld IS NULL"""
"""Of a row of ``episodes`` called ``e``: it has an outcome that may teach."""
REPLAYABLE = "EXISTS (SELECT 1 FROM tasks WHERE origin = 'episode:' || e.id)"


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedEpisode:
    """A recorded episode and what came of it.

    Example:
        ``GradedEpisode(id="ep_0193-5c", skill_id=2, session="agent-7", text="Mend the build.",
        outcome=1.0, samplers=("denizen-000007",))``
    """

    id: str
    skill_id: int
    session: str | None
    text: str  # what was asked first
    outcome: float  # in [0, 1]
    samplers: Sequence[str]  # the versions that answered its calls
    is_replayable: bool = False  # a task was derived from it, which is practised instead


class GradedEpisodes:
    """Reads graded episodes.

    Args:
        database: where they are.
        learn_from: the tenants that may teach, besides the default one.
    """

    def __init__(self, database: Database, learn_from: Collection[str] = ()) -> None:
        self._db = database
        self._learn_from = tuple(learn_from)

    def newest(
        self, skill_ids: Sequence[int], *, until: datetime, limit: int
    ) -> list[GradedEpisode]:
        """Return the skills' newest, in the order of their ids.

        Args:
            skill_ids: one that became part of another stands for the other.
            until: those that began later are left out.
            limit: how many at most.
        """
        where, values = of_skills(skill_ids, self._learn_from)
        sql = f"""SELECT e.id, e.skill_id, e.session, e.task_text AS text,
            e.outcome_value AS outcome, {REPLAYABLE} AS is_replayable,
            (SELECT json_group_array(DISTINCT adapter) FROM calls
                WHERE episode_id = e.id AND status != 'error') AS samplers
            FROM episodes e WHERE {GRADED} AND {where} AND e.created_at <= ?
            ORDER BY e.id DESC LIMIT ?"""
        values = (*values, rows.encode_value(until), limit)
        return [_decode(row) for row in self._db.read(sql, values)][::-1]

    def taught(self, version: str) -> set[str]:
        """Return the ids of the episodes that a version, or one that it continues, learned from."""
        found: set[str] = set()
        while version != BASE:
            sql = "SELECT episode_id FROM version_episodes WHERE version_id = ?"
            found |= {row["episode_id"] for row in self._db.read(sql, (version,))}
            sql = "SELECT parent FROM adapter_versions WHERE id = ?"
            parents = [row["parent"] for row in self._db.read(sql, (version,))]
            version = parents[0] if parents else BASE
        return found

    def num_advisory(self, skill_ids: Sequence[int]) -> int:
        """Count live episodes without an outcome that only a judge without trust has scored."""
        marks = ", ".join("?" * len(skill_ids))
        sql = f"""SELECT COUNT(*) AS n FROM episodes e WHERE e.skill_id IN ({marks})
            AND e.source != 'practice' AND e.outcome_value IS NULL AND EXISTS (
                SELECT 1 FROM grades g WHERE g.episode_id = e.id AND g.superseded_at IS NULL
                AND g.kind = 'judge' AND g.value IS NOT NULL)"""
        return int(self._db.read(sql, tuple(skill_ids))[0]["n"])


def of_skills(
    skill_ids: Sequence[int], learn_from: Collection[str]
) -> tuple[str, tuple[int | str, ...]]:
    """Return the condition, and its values, of a row ``e`` of these skills that may teach.

    Args:
        skill_ids: one that became part of another stands for the other.
        learn_from: the tenants that may teach, besides the default one.
    """
    skills, tenants = (", ".join("?" * len(some)) for some in (skill_ids, learn_from))
    condition = f"""e.skill_id IN (
        SELECT COALESCE(merged_into, id) FROM skills WHERE id IN ({skills}))
        AND (e.tenant IS NULL OR e.tenant IN ({tenants}))"""
    return condition, (*skill_ids, *learn_from)


def _decode(row: dict[str, Any]) -> GradedEpisode:
    known = {"samplers": tuple(json.loads(row["samplers"]))}
    return GradedEpisode(**{**row, **known, "is_replayable": bool(row["is_replayable"])})
