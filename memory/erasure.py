"""Takes episodes and tasks out of the record for good, and says which weights they have taught.

Rows go with all that hangs on them: calls, feedback, grades, vectors, tasks made from them and the
practice on those tasks and at their own prefixes. What remains is an audit row without content, the
erased ids, so that nothing on its way into the file brings them back, and a taint on every version
that learned from them. All ids are written down before the first row goes, and every write leaves
the file whole, so that an erasure that was cut short can be finished. It does not know what lies in
other files, nor when that is clean.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from memory import erased_skills, recalled_calls, rows, taints
from memory.database import Transaction
from memory.erasure_scope import Scope
from memory.errors import NotFoundError
from memory.needles import needles_of, needles_of_json
from memory.skill_writes import PERSON, note
from memory.store import Store
from memory.types import SkillEvent, new_id, utc_now

__all__ = ["MAX_ROUNDS", "Erased", "Erasure", "Scope"]

BATCH = 200  # episodes in one write, so that records do not wait long behind it
MAX_ROUNDS = 5
"""Looks for what was recorded in the scope while it was being erased; a session may be in use."""
MAX_NEEDLES = 5_000
"""Of one erasure; the files are searched for all of them at once."""
STILL_THERE = """WITH gone AS (SELECT id FROM erased_ids WHERE erasure_id = ?),
    derived AS (SELECT id FROM tasks
        WHERE id IN (SELECT id FROM gone) OR origin IN (SELECT 'episode:' || id FROM gone))
    SELECT id FROM derived UNION SELECT id FROM episodes WHERE id IN (SELECT id FROM gone)
        OR (source = 'practice' AND task_id IN (SELECT id FROM derived))"""
"""What an erasure has marked, tasks made of it, and practice on them that came in between."""
HANGING = ("feedback", "grades", "judge_probes", "vectors", "calls")


@dataclass(slots=True)
class Erased:
    """What has been erased so far."""

    id: str
    counts: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)  # version -> erased episodes it saw
    tainted: set[str] = field(default_factory=set)  # those, and their descendants
    skills: set[int] = field(default_factory=set)  # whose history says so


class Erasure:
    """Erases from the database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._db = store.database

    def find(self, scope: Scope) -> list[str]:
        """Return the ids of a scope's episodes, practice on them included, and of its task.

        Raises:
            NotFoundError: a single episode or task was named, and there is none.
        """
        where, values = scope.condition
        sql = f"""WITH own AS (SELECT id FROM episodes WHERE {where}),
            derived AS (SELECT id FROM tasks WHERE origin IN (SELECT 'episode:' || id FROM own))
            SELECT id FROM own UNION SELECT id FROM episodes
                WHERE source = 'practice' AND (task_id IN (SELECT id FROM derived)
                    OR task_id IN (SELECT id FROM own))"""
        found = [str(row["id"]) for row in self._db.read(sql, values)]
        if scope.episode is not None and not found:
            raise NotFoundError(f"there is no episode {scope.episode!r}", param="episode")
        if scope.task is not None:
            if not self._db.read("SELECT id FROM tasks WHERE id = ?", (scope.task,)):
                raise NotFoundError(f"there is no task {scope.task!r}", param="task")
            found.append(scope.task)
        return found

    def plan(self, scope: Scope) -> dict[str, Any]:
        """Say what would go and which versions would be tainted; changes nothing."""
        counts: Counter[str] = Counter()
        versions: Counter[str] = Counter()
        for ids in _batches(self.find(scope)):
            marks = ", ".join("?" * len(ids))
            for table, column in (*((one, "episode_id") for one in HANGING), ("episodes", "id")):
                sql = f"SELECT COUNT(*) AS n FROM {table} WHERE {column} IN ({marks})"
                counts[table] += self._db.read(sql, tuple(ids))[0]["n"]
            of_tasks, own = _tasks_of(ids)
            sql = f"SELECT COUNT(*) AS n FROM tasks WHERE {of_tasks}"
            counts["tasks"] += self._db.read(sql, own)[0]["n"]
            for row in self._db.read(taints.TAUGHT.format(marks=marks), tuple(ids)):
                versions[row["version_id"]] += row["n"]
        return {"counts": dict(counts), "tainted": self._tainted(versions)}

    async def begin(self, scope: Scope, ids: Sequence[str], *, actor: str) -> Erased:
        """Write down that an erasure begins, and of what: see ``mark``. One commit: all or nothing.

        Args:
            scope: as it was named.
            ids: its episodes, recorded or not.
            actor: who wants it.
        """
        erased = Erased(id=new_id("erasure"))
        row: dict[str, Any] = {
            "id": erased.id,
            "created_at": rows.encode_value(utc_now()),
            "actor": actor,
            "scope": scope.kind,
            "scope_sha256": scope.sha256,
            "counts": "{}",
            "tainted": "[]",
        }

        def write(db: Transaction) -> None:
            rows.insert(db, "erasures", row)
            self._mark(db, ids, erased)

        await self._db.write_async(write)
        return erased

    async def mark(self, ids: Sequence[str], erased: Erased) -> None:
        """Write down which episodes and tasks go, recorded or not, before any of them does.

        From then on nothing of them comes into the file, and what other episodes were told of them
        is gone.
        """
        await self._db.write_async(lambda db: self._mark(db, ids, erased))

    def _mark(self, db: Transaction, ids: Sequence[str], erased: Erased) -> None:
        _mark(db, ids, erased)
        told = recalled_calls.forget(db, erased.id)
        if told:
            self._store.episodes.forget_newest()
        for batch in _batches(told):
            _taint(db, batch, erased)
        _account(db, erased)

    def needles(self, ids: Sequence[str]) -> set[str]:
        """Return what must not be found in any file once marked episodes are gone, up to a bound.

        Reads the rows, which do not change any more. For threads.
        """
        found: set[str] = set()
        for batch in _batches(ids):
            for needles in self._needles_of(batch):
                if len(found) >= MAX_NEEDLES:
                    return found
                found |= needles
        return found

    def _needles_of(self, ids: Sequence[str]) -> Iterator[set[str]]:
        marks = ", ".join("?" * len(ids))
        sql = f"SELECT request, message, error FROM calls WHERE episode_id IN ({marks})"
        for row in self._db.read(sql, tuple(ids)):
            yield needles_of_json(row["request"]) | needles_of_json(row["message"])
            yield needles_of(row["error"] or "")
        for sql in (
            f"SELECT comment, correction FROM feedback WHERE episode_id IN ({marks})",
            f"SELECT task_text, reference FROM episodes WHERE id IN ({marks})",
        ):
            for row in self._db.read(sql, tuple(ids)):
                yield from (needles_of(text) for text in row.values() if text)
        of_tasks, own = _tasks_of(ids)
        sql = f"SELECT messages, grader_config, reference FROM tasks WHERE {of_tasks}"
        for row in self._db.read(sql, own):
            yield needles_of_json(row["messages"]) | needles_of_json(row["grader_config"])
            yield needles_of(row["reference"] or "")

    async def erase(self, ids: Sequence[str], erased: Erased) -> None:
        """Delete episodes, tasks and all that hangs on them, some at a time."""
        for batch in _batches(ids):
            await self._db.write_async(lambda db, batch=batch: _erase(db, batch, erased))  # type: ignore[misc]

    async def end(self, erased: Erased) -> None:
        """Close the audit row: indexes, journal, logs and write-ahead log are clean of it."""
        now = rows.encode_value(utc_now())
        sql = "UPDATE erasures SET ended_at = ? WHERE id = ?"
        await self._db.write_async(lambda db: db.execute(sql, (now, erased.id)))

    def tainted_by(self, erased: Erased) -> list[taints.Tainted]:
        """Return the versions that had learned from what went."""
        return self._tainted(erased.versions)

    def unfinished(self) -> list[tuple[Erased, list[str]]]:
        """Return the erasures that have not ended, each with what is still there of it."""
        found = []
        for row in self._db.read("SELECT * FROM erasures WHERE ended_at IS NULL ORDER BY id"):
            left = [str(one["id"]) for one in self._db.read(STILL_THERE, (row["id"],))]
            erased = Erased(row["id"], Counter(rows.loads(row["counts"])))
            erased.tainted.update(rows.loads(row["tainted"]))
            found.append((erased, left))
        return found

    def all(self) -> list[dict[str, Any]]:
        """Return the audit rows, newest first."""
        found = self._db.read("SELECT * FROM erasures ORDER BY id DESC")
        return [
            row | {"counts": rows.loads(row["counts"]), "tainted": rows.loads(row["tainted"])}
            for row in found
        ]

    def _tainted(self, taught: Counter[str]) -> list[taints.Tainted]:
        seen = taints.descendants(taints.parents_of(self._store), taught)
        return taints.described(self._store, seen)


def _erase(db: Transaction, ids: Sequence[str], erased: Erased) -> None:
    """Delete some episodes and tasks, and the tasks made of the former; inside a write."""
    marks, own = ", ".join("?" * len(ids)), tuple(ids)
    found = list(db.query(f"SELECT * FROM episodes WHERE id IN ({marks})", own))
    of_tasks, named = _tasks_of(ids)
    tasks = list(db.query(f"SELECT * FROM tasks WHERE {of_tasks}", named))
    _mark(db, [*ids, *(str(task["id"]) for task in tasks)], erased)
    _taint(db, own, erased)
    for table in HANGING:
        cursor = db.execute(f"DELETE FROM {table} WHERE episode_id IN ({marks})", own)
        erased.counts[table] += cursor.rowcount
    cursor = db.execute(
        f"DELETE FROM judge_probes WHERE task_id IN (SELECT id FROM tasks WHERE {of_tasks})", named
    )
    erased.counts["judge_probes"] += cursor.rowcount
    cursor = db.execute(f"DELETE FROM tasks WHERE {of_tasks}", named)
    erased.counts["tasks"] += cursor.rowcount
    cursor = db.execute(f"DELETE FROM episodes WHERE id IN ({marks})", own)
    erased.counts["episodes"] += cursor.rowcount
    for skill_id in sorted(erased_skills.settle(db, found, tasks) - erased.skills):
        note(db, skill_id, PERSON, SkillEvent.ERASED)
        erased.skills.add(skill_id)
    _account(db, erased)


def _mark(db: Transaction, ids: Iterable[str], erased: Erased) -> None:
    db.conn.executemany(
        "INSERT OR IGNORE INTO erased_ids (id, erasure_id) VALUES (?, ?)",
        [(id, erased.id) for id in ids],
    )


def _taint(db: Transaction, ids: Sequence[str], erased: Erased) -> None:
    for version, (num_episodes, _) in taints.taint(db, ids, erased.id).items():
        erased.tainted.add(version)
        if num_episodes:
            erased.versions[version] += num_episodes


def _account(db: Transaction, erased: Erased) -> None:
    """Write down what has gone so far."""
    told = (rows.encode_value(dict(erased.counts)), rows.encode_value(sorted(erased.tainted)))
    db.execute("UPDATE erasures SET counts = ?, tainted = ? WHERE id = ?", (*told, erased.id))


def _tasks_of(ids: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return what finds the tasks that are named or made of named episodes, as SQL."""
    marks = ", ".join("?" * len(ids))
    origins = (f"episode:{id}" for id in ids)
    return f"(id IN ({marks}) OR origin IN ({marks}))", (*ids, *origins)


def _batches(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
