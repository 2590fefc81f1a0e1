"""Rows of task specs: what can be tried again, and how it went."""

from collections.abc import Mapping, Sequence
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.errors import NotFoundError
from memory.types import Split, TaskSpec


class TaskStore:
    """Reads and writes task specs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, tasks: Sequence[TaskSpec]) -> int:
        """Store the tasks that are new; return how many were. Waits for the commit."""
        return self._db.write(lambda db: sum(add_task(db, task) for task in tasks))

    def get(self, task_id: str) -> TaskSpec:
        """Return one task.

        Raises:
            NotFoundError: there is none of this id.
        """
        found = self._db.read("SELECT * FROM tasks WHERE id = ?", (task_id,))
        if not found:
            raise NotFoundError(f"there is no task {task_id!r}")
        return rows.decode(TaskSpec, found[0])

    def without_skill(self, limit: int) -> list[TaskSpec]:
        """Return tasks that no skill has been found for yet."""
        found = self._db.read("SELECT * FROM tasks WHERE skill_id IS NULL LIMIT ?", (limit,))
        return [rows.decode(TaskSpec, row) for row in found]

    def of_skills(self, skill_ids: Sequence[int], split: Split) -> list[TaskSpec]:
        """Return the skills' tasks on one side of the split, least practised first."""
        marks = ", ".join("?" * len(skill_ids))
        sql = f"""SELECT * FROM tasks WHERE split = ? AND skill_id IN ({marks})
            ORDER BY num_practised, id"""
        found = self._db.read(sql, (split.value, *skill_ids))
        return [rows.decode(TaskSpec, row) for row in found]

    def note_practice(self, mean_rewards: Mapping[str, float | None]) -> None:
        """Remember that tasks were practised and with which mean reward (None: unscored)."""

        def write(db: Transaction) -> None:
            for task_id, reward in mean_rewards.items():
                db.execute(
                    """UPDATE tasks SET num_practised = num_practised + 1, last_reward = ?
                        WHERE id = ?""",
                    (reward, task_id),
                )

        self._db.write(write)

    def page(
        self, *, limit: int, after: str | None = None, skill: int | None = None
    ) -> list[dict[str, Any]]:
        """Return rows for a list, in the order of their ids."""
        sql = """SELECT id, created_at, messages, reference, grader, split, origin, skill_id,
            task_key, num_practised, last_reward FROM tasks
            WHERE id > ? AND (? IS NULL OR skill_id = ?) ORDER BY id LIMIT ?"""
        found = self._db.read(sql, (after or "", skill, skill, limit))
        return [row | {"messages": rows.loads(row["messages"])} for row in found]

    def count(self) -> int:
        """Return how many tasks there are."""
        return int(self._db.read("SELECT COUNT(*) AS n FROM tasks")[0]["n"])


def add_task(db: Transaction, task: TaskSpec) -> bool:
    """Store a task if its id is new; runs inside a write. Returns whether it was."""
    row = rows.encode(task)
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    cursor = db.execute(
        f"INSERT OR IGNORE INTO tasks ({columns}) VALUES ({marks})", tuple(row.values())
    )
    return bool(cursor.rowcount)


def replace_derived(db: Transaction, task: TaskSpec) -> None:
    """Store a task derived from an episode in place of what was derived from it before.

    A correction says that the earlier reference was wrong. Runs inside a write.
    """
    db.execute("DELETE FROM tasks WHERE origin = ? AND id != ?", (task.origin, task.id))
    add_task(db, task)


def set_task_skill(db: Transaction, task_id: str, skill_id: int) -> None:
    """Put a task under a skill; runs inside a write."""
    db.execute("UPDATE tasks SET skill_id = ? WHERE id = ?", (skill_id, task_id))
