"""Rows of skills: discovered task types, their centroids, and what is new in them."""

from typing import Any

import numpy as np

from memory import rows
from memory.database import Database, Transaction
from memory.errors import NotFoundError
from memory.types import Skill, SkillPolicy, utc_now

# New signal: live episodes that were graded, and tasks that a person brought, since the last cycle
# on the skill began. Tasks derived from episodes are left out: their episodes count already.
SKILL_ROWS = """
    WITH since AS (
        SELECT s.id AS skill_id, COALESCE(MAX(c.created_at), '') AS at FROM skills s
        LEFT JOIN cycle_skills cs ON cs.skill_id = s.id
        LEFT JOIN cycles c ON c.id = cs.cycle_id AND c.state NOT IN ('failed', 'interrupted')
        GROUP BY s.id
    ), live AS (
        SELECT e.skill_id, COUNT(*) AS num_episodes, COUNT(outcome_value) AS num_graded,
            AVG(outcome_value) AS mean_outcome,
            SUM(outcome_value IS NOT NULL AND e.learn AND since.at < (
                SELECT MAX(g.created_at) FROM grades g
                WHERE g.episode_id = e.id AND g.superseded_at IS NULL)) AS num_new
        FROM episodes e JOIN since ON since.skill_id = e.skill_id
        WHERE source != 'practice' GROUP BY e.skill_id
    ), work AS (
        SELECT t.skill_id, SUM(split = 'train') AS num_train, SUM(split = 'heldout') AS num_heldout,
            SUM(origin NOT LIKE 'episode:%' AND t.created_at > since.at) AS num_new
        FROM tasks t JOIN since ON since.skill_id = t.skill_id GROUP BY t.skill_id
    )
    SELECT s.id, s.title, s.created_at, s.policy, s.task_key,
        COALESCE(live.num_episodes, 0) AS num_episodes, COALESCE(live.num_graded, 0) AS num_graded,
        live.mean_outcome, COALESCE(work.num_train, 0) AS num_train_tasks,
        COALESCE(work.num_heldout, 0) AS num_heldout_tasks,
        COALESCE(live.num_new, 0) + COALESCE(work.num_new, 0) AS num_new_signal
    FROM skills s LEFT JOIN live ON live.skill_id = s.id LEFT JOIN work ON work.skill_id = s.id
"""


class SkillStore:
    """Reads and writes skills."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> list[Skill]:
        """Return every skill with its counts, oldest first."""
        return [rows.decode(Skill, row) for row in self._db.read(SKILL_ROWS + " ORDER BY s.id")]

    def get(self, skill_id: int) -> Skill:
        """Return one skill.

        Raises:
            NotFoundError: there is none of this id.
        """
        found = self._db.read(SKILL_ROWS + " WHERE s.id = ?", (skill_id,))
        if not found:
            raise NotFoundError(f"there is no skill {skill_id}", param="skill")
        return rows.decode(Skill, found[0])

    def centroids(self) -> list[dict[str, Any]]:
        """Return what the assigner starts from, as the rows have it."""
        return self._db.read(
            "SELECT id, title, task_key, centroid, centroid_count FROM skills ORDER BY id"
        )

    def update(self, skill_id: int, *, title: str | None, policy: SkillPolicy | None) -> Skill:
        """Rename a skill or change whether it may be learned; None leaves a field as it is."""
        self.get(skill_id)

        def write(db: Transaction) -> None:
            db.execute(
                """UPDATE skills SET title = COALESCE(?, title), policy = COALESCE(?, policy)
                    WHERE id = ?""",
                (title, policy, skill_id),
            )

        self._db.write(write)
        return self.get(skill_id)


def save_skill(
    db: Transaction,
    *,
    skill_id: int,
    title: str,
    task_key: str | None,
    centroid_D: np.ndarray | None,
    count: int,
) -> None:
    """Store a new skill or move a known one's centroid; a person's title stays. Inside a write."""
    blob = None if centroid_D is None else np.asarray(centroid_D, dtype="<f4").tobytes()
    db.execute(
        """INSERT INTO skills (id, title, created_at, policy, task_key, centroid, centroid_count)
            VALUES (?, ?, ?, ?, ?, ?, ?)
            ON CONFLICT(id) DO UPDATE SET centroid = excluded.centroid,
                centroid_count = excluded.centroid_count""",
        (
            skill_id,
            title,
            rows.encode_value(utc_now()),
            SkillPolicy.LEARN,
            task_key,
            blob,
            count,
        ),
    )
