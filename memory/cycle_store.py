"""Rows of learning cycles and their steps: what was tried, what it cost, how it ended."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.errors import NotFoundError
from memory.types import (
    Cycle,
    CycleStage,
    CycleState,
    CycleStep,
    TaskRole,
    TaskSpec,
    utc_now,
)

MAX_IDS = 500  # in one query

CYCLE_ROWS = """SELECT *, (SELECT json_group_array(skill_id) FROM cycle_skills
    WHERE cycle_id = cycles.id) AS skill_ids FROM cycles"""


class CycleStore:
    """Reads and writes cycles."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def start(self, cycle: Cycle) -> None:
        """Store a cycle that begins. Waits for the commit."""

        def write(db: Transaction) -> None:
            rows.insert(db, "cycles", rows.encode(cycle, skip=frozenset({"skill_ids"})))
            for skill_id in cycle.skill_ids:
                rows.insert(db, "cycle_skills", {"cycle_id": cycle.id, "skill_id": skill_id})

        self._db.write(write)

    def add_step(self, step: CycleStep) -> None:
        """Store a step's receipt. Waits for the commit."""
        self._db.write(lambda db: rows.insert(db, "cycle_steps", rows.encode(step)))

    def set_candidate(self, cycle_id: str, candidate: str) -> None:
        """Name the version that a running cycle has made."""
        sql = "UPDATE cycles SET candidate = ? WHERE id = ?"
        self._db.write(lambda db: db.execute(sql, (candidate, cycle_id)))

    def set_gate(self, cycle_id: str, gate: Mapping[str, Any]) -> None:
        """Keep what the gate found of a running cycle's candidate."""
        sql = "UPDATE cycles SET gate = ? WHERE id = ?"
        self._db.write(lambda db: db.execute(sql, (rows.encode_value(gate), cycle_id)))

    def end(
        self, cycle_id: str, state: CycleState, reason: str, *, receipt: Mapping[str, Any]
    ) -> Cycle:
        """Close a cycle with its verdict and return it as stored; what it worked on is let go."""
        sql = """UPDATE cycles SET state = ?, end_reason = ?, receipt = ?, ended_at = ?
            WHERE id = ?"""
        values = (state, reason, receipt, utc_now(), cycle_id)

        def write(db: Transaction) -> None:
            db.execute(sql, tuple(map(rows.encode_value, values)))
            db.execute("DELETE FROM cycle_tasks WHERE cycle_id = ?", (cycle_id,))

        self._db.write(write)
        return self.get(cycle_id)

    def set_state(self, cycle_id: str, state: CycleState, reason: str) -> None:
        """Change the verdict of an ended cycle (a person approved or rejected its candidate)."""
        sql = "UPDATE cycles SET state = ?, end_reason = ? WHERE id = ?"
        self._db.write(lambda db: db.execute(sql, (state, reason, cycle_id)))

    def running(self) -> list[Cycle]:
        """Return the cycles without a verdict, newest first: one runs, or its service ended."""
        sql = CYCLE_ROWS + " WHERE state = ? ORDER BY id DESC"
        return [rows.decode(Cycle, row) for row in self._db.read(sql, (CycleState.RUNNING.value,))]

    def note_stop(self, cycle_id: str) -> None:
        """Write down that the service ends in an orderly way while the cycle runs."""
        sql = "UPDATE cycles SET was_stopped = 1 WHERE id = ?"
        self._db.write(lambda db: db.execute(sql, (cycle_id,)))

    def take_up(self, cycle_id: str) -> Cycle:
        """Count that a service goes on with a cycle, before it does; return the cycle."""
        sql = """UPDATE cycles SET num_resumes = num_resumes + 1,
            num_deaths = num_deaths + 1 - was_stopped, was_stopped = 0 WHERE id = ?"""
        self._db.write(lambda db: db.execute(sql, (cycle_id,)))
        return self.get(cycle_id)

    def set_tasks(self, cycle_id: str, tasks: Mapping[TaskRole, Sequence[TaskSpec]]) -> None:
        """Write down what a cycle works on, in order, until it ends."""
        found = [
            (cycle_id, role.value, place, task.id)
            for role, chosen in tasks.items()
            for place, task in enumerate(chosen)
        ]
        sql = "INSERT INTO cycle_tasks (cycle_id, role, place, task_id) VALUES (?, ?, ?, ?)"
        self._db.write(lambda db: db.conn.executemany(sql, found))

    def tasks(self, cycle_id: str) -> dict[TaskRole, list[TaskSpec]]:
        """Return what a cycle works on, as it was written down; empty before that.

        A task that went since is left out.
        """
        sql = """SELECT role, tasks.* FROM cycle_tasks JOIN tasks ON tasks.id = task_id
            WHERE cycle_id = ? ORDER BY role, place"""
        found: dict[TaskRole, list[TaskSpec]] = {}
        for row in self._db.read(sql, (cycle_id,)):
            found.setdefault(TaskRole(row["role"]), []).append(rows.decode(TaskSpec, row))
        return found

    def num_lost_tasks(self, cycle_id: str) -> int:
        """Return how many of the tasks that were written down are not there any more."""
        sql = """SELECT COUNT(*) AS n FROM cycle_tasks WHERE cycle_id = ?
            AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.id = task_id)"""
        return int(self._db.read(sql, (cycle_id,))[0]["n"])

    def note_taught(self, stage: CycleStage, episode_ids: Collection[str]) -> None:
        """Write down from what a step is about to learn, beside what it sampled itself."""
        found = [(stage.cycle_id, stage.name, episode_id) for episode_id in sorted(episode_ids)]
        sql = """INSERT OR IGNORE INTO cycle_episodes (cycle_id, stage, episode_id)
            VALUES (?, ?, ?)"""
        self._db.write(lambda db: db.conn.executemany(sql, found))

    def episodes_of(self, stage: CycleStage) -> set[str]:
        """Return the ids of what a stage sampled or learned from."""
        sql = "SELECT episode_id FROM cycle_episodes WHERE cycle_id = ? AND stage = ?"
        return {row["episode_id"] for row in self._db.read(sql, (stage.cycle_id, stage.name))}

    def is_hit_by_erasure(self, cycle_id: str) -> bool:
        """Say whether something that a running cycle works with has been erased."""
        sql = """SELECT EXISTS (SELECT 1 FROM cycle_episodes JOIN erased_ids ON id = episode_id
                WHERE cycle_id = ?1)
            OR EXISTS (SELECT 1 FROM cycle_tasks JOIN erased_ids ON id = task_id
                WHERE cycle_id = ?1) AS is_hit"""
        return bool(self._db.read(sql, (cycle_id,))[0]["is_hit"])

    def uses(self, cycle_id: str, episode_ids: Sequence[str]) -> bool:
        """Say whether a running cycle works with any of these, or with a task made from one.

        Args:
            cycle_id: which cycle.
            episode_ids: of episodes; of tasks as well.
        """
        for start in range(0, len(episode_ids), MAX_IDS):
            ids = tuple(episode_ids[start : start + MAX_IDS])
            marks = ", ".join("?" * len(ids))
            sql = f"""SELECT EXISTS (SELECT 1 FROM cycle_episodes
                    WHERE cycle_id = ? AND episode_id IN ({marks}))
                OR EXISTS (SELECT 1 FROM cycle_tasks JOIN tasks ON tasks.id = task_id
                    WHERE cycle_id = ? AND (origin IN ({marks}) OR task_id IN ({marks}))
                ) AS is_used"""
            origins = [f"episode:{episode_id}" for episode_id in ids]
            if self._db.read(sql, (cycle_id, *ids, cycle_id, *origins, *ids))[0]["is_used"]:
                return True
        return False

    def get(self, cycle_id: str) -> Cycle:
        """Return one cycle.

        Raises:
            NotFoundError: there is none of this id.
        """
        found = self._db.read(CYCLE_ROWS + " WHERE id = ?", (cycle_id,))
        if not found:
            raise NotFoundError(f"there is no cycle {cycle_id!r}")
        return rows.decode(Cycle, found[0])

    def steps(self, cycle_id: str) -> list[CycleStep]:
        """Return a cycle's steps in order."""
        sql = 'SELECT * FROM cycle_steps WHERE cycle_id = ? ORDER BY "index"'
        return [rows.decode(CycleStep, row) for row in self._db.read(sql, (cycle_id,))]

    def page(self, *, limit: int, after: str | None = None) -> list[Cycle]:
        """Return cycles, newest first, that come after the id ``after``."""
        sql = CYCLE_ROWS + " WHERE (? IS NULL OR id < ?) ORDER BY id DESC LIMIT ?"
        return [rows.decode(Cycle, row) for row in self._db.read(sql, (after, after, limit))]
