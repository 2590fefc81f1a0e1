"""The guideline of a skill: how an operator wants such tasks done; recalled with examples.

Each version is kept, with when and by whom; the newest is in force.
"""

from dataclasses import dataclass
from datetime import datetime

from memory import rows
from memory.database import Database, Transaction
from memory.skill_writes import require_unmerged
from memory.types import utc_now


@dataclass(frozen=True, kw_only=True, slots=True)
class GuidelineRow:
    """One version of a skill's guideline.

    Example:
        ``GuidelineRow(skill_id=2, version=3, text="Answer with the bare number.", created_at=…,
        author="admin")``
    """

    skill_id: int
    version: int
    text: str  # empty: withdrawn
    created_at: datetime
    author: str


class Guidelines:
    """Reads and writes guidelines; only an admin's route writes them."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def get(self, skill_id: int) -> str | None:
        """Return the guideline that is in force."""
        sql = "SELECT text FROM skill_guidelines WHERE skill_id = ? ORDER BY version DESC LIMIT 1"
        found = self._db.read(sql, (skill_id,))
        return (str(found[0]["text"]) or None) if found else None

    def versions(self, skill_id: int) -> list[GuidelineRow]:
        """Return all versions of a skill, or of the one that it became part of, oldest first."""
        sql = """SELECT * FROM skill_guidelines
            WHERE skill_id = (SELECT COALESCE(merged_into, id) FROM skills WHERE id = ?)
            ORDER BY version"""
        return [rows.decode(GuidelineRow, row) for row in self._db.read(sql, (skill_id,))]

    def set(self, skill_id: int, text: str, *, author: str = "admin") -> GuidelineRow:
        """Put a new version in force; an empty one withdraws the one before.

        Raises:
            ConflictError: the skill became part of another meanwhile.
        """

        def write(db: Transaction) -> GuidelineRow:
            require_unmerged(db, skill_id)
            sql = """SELECT COALESCE(MAX(version), 0) + 1 AS next FROM skill_guidelines
                WHERE skill_id = ?"""
            row = GuidelineRow(
                skill_id=skill_id,
                version=next(db.query(sql, (skill_id,)))["next"],
                text=text.strip(),
                created_at=utc_now(),
                author=author,
            )
            rows.insert(db, "skill_guidelines", rows.encode(row))
            return row

        return self._db.write(write)
