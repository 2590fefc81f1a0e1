"""Rows that tell how far a judge can be trusted: grades beside grades, and what was planted.

It does not know what follows from them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.tenants import EVERYTHING, Sight
from memory.types import Grade, GradeKind

# The length is that of the newest complete answer, which is the one that is graded. That a judge
# could not be reached says nothing of it.
_BESIDE = """
    SELECT j.grader, j.version, e.skill_id, e.id AS episode_id, j.value AS judged,
        (SELECT json_group_array(json_object('kind', g.kind, 'value', g.value, 'at', g.created_at))
            FROM grades g WHERE g.episode_id = e.id AND g.superseded_at IS NULL
            AND g.kind IN ('check', 'person') AND g.value IS NOT NULL) AS beside,
        j.created_at AS judged_at,
        (SELECT length(json_extract(message, '$.content')) FROM calls WHERE episode_id = e.id
            AND status = 'ok' AND message IS NOT NULL ORDER BY rowid DESC LIMIT 1) AS length
    FROM grades j JOIN episodes e ON e.id = j.episode_id
    WHERE j.kind = 'judge' AND j.superseded_at IS NULL AND e.skill_id IS NOT NULL
        AND (j.value IS NOT NULL OR NOT COALESCE(json_extract(j.evidence, '$.may_pass'), 0))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """One answer that a judge has graded, and what others said of it.

    Example:
        ``Beside(grader="judge", version="score/1", skill_id=2, episode_id="ep_0193-5c",
        judged=0.75, kind=GradeKind.CHECK, values=(1.0,), at="2026-01-01T12:00:00…", length=214)``
    """

    grader: str
    version: str
    skill_id: int
    episode_id: str
    judged: float | None
    kind: GradeKind | None  # the strongest that scored it too; None: nobody did
    values: tuple[float, ...]  # of that kind
    at: str  # when the later of the two grades came
    length: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What a judge said of one planted answer, or of two answers in both orders.

    Example:
        ``Probe(grader="judge", version="score/1", skill_id=2, task_id="task_5c0f…",
        episode_id=None, kind="injected", value=0.0, created_at=…)``
    """

    grader: str
    version: str
    skill_id: int
    task_id: str
    episode_id: str | None  # which the task was made of
    kind: str
    created_at: datetime
    value: float | None = None
    swap: str | None = None


class JudgeEvidence:
    """Reads and writes what tells how far judges can be trusted."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def judged(self) -> list[Beside]:
        """Return every answer with a judge's grade in force and a skill, oldest first."""
        found = [_beside(row) for row in self._db.read(_BESIDE)]
        return sorted(found, key=lambda one: (one.at, one.episode_id))

    def probes(self) -> list[Probe]:
        """Return what was planted, oldest first, under the skills as they are now."""
        sql = """SELECT grader, version, COALESCE(s.merged_into, s.id) AS skill_id, task_id,
            episode_id, kind, p.created_at, value, swap
            FROM judge_probes p JOIN skills s ON s.id = p.skill_id ORDER BY p.id"""
        return [rows.decode(Probe, row) for row in self._db.read(sql)]

    async def add_probes(self, probes: Sequence[Probe]) -> None:
        """Keep what a judge said; of what was erased meanwhile nothing is kept."""

        def write(db: Transaction) -> None:
            for probe in probes:
                row = rows.encode(probe)
                if probe.episode_id is not None:  # it may have gone; then its id is not known
                    its = db.query("SELECT 1 FROM episodes WHERE id = ?", (probe.episode_id,))
                    if not any(its):
                        continue
                rows.insert(db, "judge_probes", row)

        await self._db.write_async(write)

    def merged_skills(self) -> dict[int, int]:
        """Return, of skills that became part of another, the other."""
        sql = "SELECT id, merged_into FROM skills WHERE merged_into IS NOT NULL"
        return {row["id"]: row["merged_into"] for row in self._db.read(sql)}

    async def merge_again(self, trusted: Collection[tuple[str, str, int]]) -> int:
        """Open episodes for merging whose outcome does not follow from who is trusted.

        Those without an outcome to which a trusted judge gave a value, and those whose outcome a
        judge decided that is trusted no more, or not in the skill where they are now.

        Args:
            trusted: judges by name, version and skill.

        Returns:
            How many were opened.
        """
        marks = ", ".join(["(?, ?, ?)"] * len(trusted))
        among = f"(VALUES {marks})" if trusted else "(SELECT NULL, NULL, NULL WHERE FALSE)"
        may_teach = f"""EXISTS (SELECT 1 FROM grades g WHERE g.episode_id = episodes.id
            AND kind = 'judge' AND superseded_at IS NULL AND value IS NOT NULL
            AND (grader, version, episodes.skill_id) IN {among})"""
        sql = f"""UPDATE episodes SET revision = revision + 1
            WHERE id IN (SELECT episode_id FROM grades WHERE kind = 'judge'
                AND superseded_at IS NULL AND value IS NOT NULL)
            AND digested_revision >= revision AND (
                (outcome_value IS NULL AND {may_teach})
                OR (outcome_provenance = 'judge' AND NOT {may_teach}))"""
        values = [part for one in trusted for part in one] * 2
        return await self._db.write_async(lambda db: max(0, db.execute(sql, values).rowcount))

    def graded_unjudged(self, skill_id: int, limit: int) -> list[str]:
        """Return a skill's newest episodes that a check or a person has graded and no judge has.

        Without practice, what is kept from learning, and what waits for a judge.
        """
        sql = """SELECT id FROM episodes e WHERE skill_id = ? AND source != 'practice' AND learn
            AND EXISTS (SELECT 1 FROM grades WHERE episode_id = e.id AND superseded_at IS NULL
                AND kind IN ('check', 'person') AND value IS NOT NULL)
            AND NOT EXISTS (SELECT 1 FROM grades WHERE episode_id = e.id
                AND superseded_at IS NULL AND kind = 'judge')
            AND NOT EXISTS (SELECT 1 FROM judge_queue WHERE episode_id = e.id)
            ORDER BY id DESC LIMIT ?"""
        return [str(row["id"]) for row in self._db.read(sql, (skill_id, limit))]

    def skills_with_tasks_for(self, grader: str) -> set[int]:
        """Return the skills that have a task which names this grader."""
        sql = "SELECT DISTINCT skill_id FROM tasks WHERE grader = ? AND skill_id IS NOT NULL"
        return {int(row["skill_id"]) for row in self._db.read(sql, (grader,))}

    def unlabelled(self, limit: int, sight: Sight = EVERYTHING) -> list[dict[str, Any]]:
        """Return the newest episodes that a judge graded and no person has, with their grades.

        Without turns that were taken again: a judge ranked them, and no label is compared with it.
        """
        sql = f"""SELECT id, created_at, source, task_text, skill_id FROM episodes
            WHERE {sight.clause} AND id IN (SELECT episode_id FROM grades
                WHERE kind = 'judge' AND superseded_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM grades WHERE episode_id = episodes.id
                AND kind = 'person' AND superseded_at IS NULL)
            AND NOT EXISTS (SELECT 1 FROM feedback WHERE episode_id = episodes.id)
            AND NOT EXISTS (SELECT 1 FROM episodes AS whole WHERE whole.id = episodes.task_id)
            ORDER BY id DESC LIMIT ?"""
        grades = "SELECT * FROM grades WHERE episode_id = ? AND superseded_at IS NULL ORDER BY id"
        return [
            row
            | {"grades": [rows.decode(Grade, one) for one in self._db.read(grades, (row["id"],))]}
            for row in self._db.read(sql, (limit,))
        ]


def _beside(row: dict[str, Any]) -> Beside:
    beside = rows.loads(row["beside"])
    kinds = {GradeKind(one["kind"]) for one in beside}
    kind = next((kind for kind in GradeKind if kind in kinds), None)
    deciding = [one for one in beside if one["kind"] == kind]
    return Beside(
        grader=row["grader"],
        version=row["version"],
        skill_id=row["skill_id"],
        episode_id=row["episode_id"],
        judged=row["judged"],
        kind=kind,
        values=tuple(float(one["value"]) for one in deciding),
        at=max([row["judged_at"], *(one["at"] for one in deciding)]),
        length=row["length"],
    )
