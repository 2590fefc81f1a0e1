"""Rows of learning cycles and their steps: what was tried, what it cost, how it ended."""

from collections.abc import Mapping
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.errors import NotFoundError
from memory.types import Cycle, CycleState, CycleStep, utc_now

WHY_INTERRUPTED = (
    "the service stopped while the cycle ran; its steps are dropped, and the signal that it "
    "started from counts for the next cycle"
)
"""Reason of a cycle that ended with the service."""

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
        """Close a cycle with its verdict and return it as stored."""
        sql = """UPDATE cycles SET state = ?, end_reason = ?, receipt = ?, ended_at = ?
            WHERE id = ?"""
        values = (state, reason, receipt, utc_now(), cycle_id)
        self._db.write(lambda db: db.execute(sql, tuple(map(rows.encode_value, values))))
        return self.get(cycle_id)

    def set_state(self, cycle_id: str, state: CycleState, reason: str) -> None:
        """Change the verdict of an ended cycle (a person approved or rejected its candidate)."""
        sql = "UPDATE cycles SET state = ?, end_reason = ? WHERE id = ?"
        self._db.write(lambda db: db.execute(sql, (state, reason, cycle_id)))

    def interrupt_running(self) -> list[str]:
        """Mark what ran when the service died; called once at start. Returns the cycles' ids."""
        sql = """UPDATE cycles SET state = ?, ended_at = ?, end_reason = ? WHERE state = ?
            RETURNING id"""
        values = (CycleState.INTERRUPTED, utc_now(), WHY_INTERRUPTED, CycleState.RUNNING)

        def write(db: Transaction) -> list[str]:
            found = db.execute(sql, tuple(map(rows.encode_value, values)))
            return [row[0] for row in found.fetchall()]

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
