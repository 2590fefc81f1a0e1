"""The guideline of a skill: how an operator wants such tasks done; recalled with examples."""

from memory import rows
from memory.database import Database, Transaction
from memory.skill_writes import require_unmerged
from memory.types import utc_now


class Guidelines:
    """Reads and writes guidelines; only an admin's route writes them."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def get(self, skill_id: int) -> str | None:
        """Return a skill's guideline."""
        found = self._db.read("SELECT text FROM skill_guidelines WHERE skill_id = ?", (skill_id,))
        return str(found[0]["text"]) if found else None

    def set(self, skill_id: int, text: str) -> None:
        """Approve a guideline in place of the one before; an empty one withdraws it.

        Raises:
            ConflictError: the skill became part of another meanwhile.
        """

        def write(db: Transaction) -> None:
            require_unmerged(db, skill_id)
            db.execute("DELETE FROM skill_guidelines WHERE skill_id = ?", (skill_id,))
            if text.strip():
                row = {"skill_id": skill_id, "text": text, "created_at": utc_now()}
                rows.insert(
                    db, "skill_guidelines", {k: rows.encode_value(v) for k, v in row.items()}
                )

        self._db.write(write)
