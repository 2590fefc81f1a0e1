"""Rows of task specs: what can be tried again, and how it went."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.embed import EMPTY
from memory.errors import NotFoundError
from memory.tenants import EVERYTHING, Sight
from memory.types import Split, TaskSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """How a task went in the newest cycle that practised it.

    Example:
        ``Tries(num=8, mean=0.25, spread=1.0)``
    """

    num: int  # scored
    mean: float  # reward, in [0, 1]
    spread: float  # between the best and the worst; 0: nothing to learn from


class TaskStore:
    """Reads and writes task specs."""

    def __init__(self, database: Database, learn_from: Collection[str] = ()) -> None:
        self._db = database
        self._learn_from = tuple(learn_from)

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
        """Return tasks that no skill has been looked for yet.

        A task derived from an episode goes where the episode goes.
        """
        sql = """SELECT * FROM tasks WHERE skill_id IS NULL
            AND NOT EXISTS (SELECT 1 FROM task_vectors WHERE task_id = tasks.id)
            AND NOT EXISTS (SELECT 1 FROM episodes WHERE 'episode:' || id = tasks.origin)
            LIMIT ?"""
        found = self._db.read(sql, (limit,))
        return [rows.decode(TaskSpec, row) for row in found]

    def try_again(self) -> None:
        """Let a skill be looked for again for those of which no vector could be made."""
        sql = """DELETE FROM task_vectors WHERE vector IS NULL AND missing_reason != ?
            AND EXISTS (SELECT 1 FROM tasks WHERE id = task_id AND skill_id IS NULL)"""
        self._db.write(lambda db: db.execute(sql, (EMPTY,)))

    def of_skills(self, skill_ids: Sequence[int], split: Split) -> list[TaskSpec]:
        """Return the skills' tasks on one side of the split, least practised first.

        Those of tenants that may not teach are left out.
        """
        marks = ", ".join("?" * len(skill_ids))
        tenants = ", ".join("?" * len(self._learn_from))
        sql = f"""SELECT * FROM tasks WHERE split = ? AND skill_id IN (
                SELECT COALESCE(merged_into, id) FROM skills WHERE id IN ({marks}))
            AND (tenant IS NULL OR tenant IN ({tenants})) ORDER BY num_practised, id"""
        found = self._db.read(sql, (split.value, *skill_ids, *self._learn_from))
        return [rows.decode(TaskSpec, row) for row in found]

    def tries(self, skill_ids: Sequence[int], *, before_cycle: str) -> dict[str, Tries]:
        """Return how the skills' training tasks went, by id, in cycles before one.

        A task that was never practised, or so long ago that its tries were deleted, has no entry.
        """
        marks = ", ".join("?" * len(skill_ids))
        sql = f"""SELECT e.task_id, COUNT(*) AS num, AVG(outcome_value) AS mean,
                MAX(outcome_value) - MIN(outcome_value) AS spread
            FROM tasks t JOIN episodes e ON e.task_id = t.id
            WHERE t.split = 'train' AND t.skill_id IN (
                SELECT COALESCE(merged_into, id) FROM skills WHERE id IN ({marks}))
            AND e.source = 'practice' AND e.cycle_id < ? AND e.outcome_value IS NOT NULL
            GROUP BY e.task_id, e.cycle_id ORDER BY e.cycle_id"""
        found = self._db.read(sql, (*skill_ids, before_cycle))
        return {
            row["task_id"]: Tries(num=row["num"], mean=row["mean"], spread=row["spread"])
            for row in found
        }

    def page(
        self,
        *,
        limit: int,
        after: str | None = None,
        skill: int | None = None,
        sight: Sight = EVERYTHING,
    ) -> list[dict[str, Any]]:
        """Return rows for a list, in the order of their ids."""
        sql = f"""SELECT id, created_at, messages, reference, grader, split, origin, skill_id,
            task_key, tenant, num_practised, last_reward FROM tasks
            WHERE id > ? AND (? IS NULL OR skill_id = ?) AND {sight.clause} ORDER BY id LIMIT ?"""
        found = self._db.read(sql, (after or "", skill, skill, limit))
        return [row | {"messages": rows.loads(row["messages"])} for row in found]

    def count(self, sight: Sight = EVERYTHING) -> int:
        """Return how many tasks there are."""
        found = self._db.read(f"SELECT COUNT(*) AS n FROM tasks WHERE {sight.clause}")
        return int(found[0]["n"])


def add_task(db: Transaction, task: TaskSpec) -> bool:
    """Store a task if its id is new; runs inside a write. Returns whether it was.

    One that was erased may be given again, and is then a task like any other.
    """
    row = rows.encode(task)
    columns = ", ".join(row)
    marks = ", ".join("?" * len(row))
    cursor = db.execute(
        f"INSERT OR IGNORE INTO tasks ({columns}) VALUES ({marks})", tuple(row.values())
    )
    if cursor.rowcount:
        db.execute("DELETE FROM erased_ids WHERE id = ?", (task.id,))
    return bool(cursor.rowcount)


def note_practice(db: Transaction, mean_rewards: Mapping[str, float | None]) -> None:
    """Remember that tasks were practised and with which mean reward (None: unscored).

    Inside a write.
    """
    for task_id, reward in mean_rewards.items():
        db.execute(
            "UPDATE tasks SET num_practised = num_practised + 1, last_reward = ? WHERE id = ?",
            (reward, task_id),
        )


def replace_derived(db: Transaction, task: TaskSpec) -> None:
    """Store a task derived from an episode in place of what was derived from it before.

    A correction says that the earlier reference was wrong. It goes where the episode is, if that
    has found a skill. Runs inside a write.
    """
    db.execute("DELETE FROM tasks WHERE origin = ? AND id != ?", (task.origin, task.id))
    add_task(db, task)
    db.execute(
        """UPDATE tasks SET skill_id = (SELECT skill_id FROM episodes WHERE id = ?)
            WHERE id = ? AND origin = ?""",
        (task.origin.removeprefix("episode:"), task.id, task.origin),
    )


def set_task_skill(db: Transaction, task_id: str, skill_id: int) -> None:
    """Put a task under a skill; runs inside a write."""
    db.execute("UPDATE tasks SET skill_id = ? WHERE id = ?", (skill_id, task_id))
