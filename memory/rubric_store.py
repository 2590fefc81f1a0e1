"""The rubrics of skills: by what judges score their answers, each version kept."""

from dataclasses import dataclass
from datetime import datetime

from memory import rows
from memory.database import Database, Transaction
from memory.skill_writes import require_unmerged
from memory.types import utc_now


@dataclass(frozen=True, kw_only=True, slots=True)
class RubricRow:
    """One version of a skill's rubric.

    Example:
        ``RubricRow(skill_id=2, version=3, text="Full marks only for …", created_at=…,
        author="admin")``
    """

    skill_id: int
    version: int
    text: str  # empty: the default rubric is in force again
    created_at: datetime
    author: str


class RubricStore:
    """Reads and writes rubrics; only an admin's route writes them."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def newest(self, skill_id: int) -> RubricRow | None:
        """Return the version in force of a skill, or of the one that it became part of."""
        versions = self.versions(skill_id)
        return versions[-1] if versions else None

    def versions(self, skill_id: int) -> list[RubricRow]:
        """Return all versions, oldest first."""
        sql = """SELECT * FROM rubrics
            WHERE skill_id = (SELECT COALESCE(merged_into, id) FROM skills WHERE id = ?)
            ORDER BY version"""
        return [rows.decode(RubricRow, row) for row in self._db.read(sql, (skill_id,))]

    def add(self, skill_id: int, text: str, *, author: str) -> RubricRow:
        """Put a new version in force; an empty text brings the default rubric back.

        Raises:
            ConflictError: the skill became part of another meanwhile.
        """

        def write(db: Transaction) -> RubricRow:
            require_unmerged(db, skill_id)
            sql = "SELECT COALESCE(MAX(version), 0) + 1 AS next FROM rubrics WHERE skill_id = ?"
            [found] = db.query(sql, (skill_id,))
            row = RubricRow(
                skill_id=skill_id,
                version=found["next"],
                text=text.strip(),
                created_at=utc_now(),
                author=author,
            )
            rows.insert(db, "rubrics", rows.encode(row))
            return row

        return self._db.write(write)
