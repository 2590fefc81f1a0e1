"""Rows of learning cycles and their steps: what was tried, what it cost, how it ended."""

from collections.abc import Mapping
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.errors import NotFoundError
from memory.types import Cycle, CycleState, CycleStep, utc_now

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

    def end(
        self,
        cycle_id: str,
        state: CycleState,
        reason: str,
        *,
        candidate: str | None = None,
        receipt: Mapping[str, Any] | None = None,
        gate: Mapping[str, Any] | None = None,
    ) -> Cycle:
        """Close a cycle with its verdict and return it as stored."""

        def write(db: Transaction) -> None:
            values = (state, reason, candidate, receipt or {}, gate, utc_now(), cycle_id)
            db.execute(
                """UPDATE cycles SET state = ?, end_reason = ?, candidate = ?, receipt = ?, gate =
                ?,
                    ended_at = ? WHERE id = ?""",
                tuple(rows.encode_value(value) for value in values),
            )

        self._db.write(write)
        return self.get(cycle_id)

    def set_state(self, cycle_id: str, state: CycleState, reason: str) -> None:
        """Change the verdict of an ended cycle (a person approved or rejected its candidate)."""
        self._db.write(
            lambda db: db.execute(
                "UPDATE cycles SET state = ?, end_reason = ? WHERE id = ?",
                (state, reason, cycle_id),
            )
        )

    def interrupt_running(self) -> int:
        """Mark what ran when the service died; called once at start. Returns how many."""

        def write(db: Transaction) -> int:
            cursor = db.execute(
                "UPDATE cycles SET state = ?, ended_at = ?, end_reason = ? WHERE state = ?",
                (
                    CycleState.INTERRUPTED,
                    rows.encode_value(utc_now()),
                    "the service stopped while the cycle ran",
                    CycleState.RUNNING,
                ),
            )
            return int(cursor.rowcount)

        return self._db.write(write)

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
