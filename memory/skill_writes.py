"""Changes to the rows of skills inside a write: founded, moved, merged, split, named.

Each is written down in the skill's history. Ids are stable: a skill that became part of another
keeps its row, which says of which.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from memory import rows
from memory.database import Transaction
from memory.embed import Vector
from memory.errors import ConflictError
from memory.types import SkillChange, SkillEvent, SkillPolicy, utc_now

PERSON, SYSTEM = "person", "system"
MEASURED_MEMBERS = 1_000
"""Vectors that a centroid is measured on; the newest."""

# A skill's texts as vectors: those of its live episodes, and of the tasks that a person brought.
NEWEST_VECTORS = """
    SELECT id, vector FROM (
        SELECT e.id, e.created_at, v.vector FROM episodes e JOIN vectors v ON v.episode_id = e.id
            WHERE e.skill_id = ? AND e.source != 'practice' AND v.embedder = ?
                AND v.vector IS NOT NULL
        UNION ALL
        SELECT t.id, t.created_at, v.vector FROM tasks t JOIN task_vectors v ON v.task_id = t.id
            WHERE t.skill_id = ? AND v.embedder = ? AND v.vector IS NOT NULL
    ) ORDER BY created_at DESC LIMIT ?
"""
SKILL_SEEN = """SELECT *, '' != COALESCE((
    SELECT g.text FROM skill_guidelines g WHERE g.skill_id = skills.id
    ORDER BY g.version DESC LIMIT 1), '') AS has_guideline FROM skills"""
NEWEST_CHANGE = "SELECT COALESCE(MAX(id), 0) AS id FROM skill_history"


class VectorOf(Enum):
    """What was embedded."""

    EPISODE = auto()
    TASK = auto()


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillRow:
    """What the regrouping reads of a skill.

    Example:
        ``SkillRow(id=2, title="multiplication", policy=SkillPolicy.LEARN, has_guideline=False, …)``
    """

    id: int
    title: str
    policy: SkillPolicy
    task_key: str | None
    is_kept: bool
    key_terms: Sequence[str]
    has_guideline: bool

    @property
    def is_fixed(self) -> bool:
        """Say whether a person's word keeps the system from splitting, merging and renaming it."""
        is_named = self.is_kept or self.task_key is not None
        return is_named or self.has_guideline or self.policy is not SkillPolicy.LEARN


def note(
    db: Transaction,
    skill_id: int,
    actor: str,
    event: SkillEvent,
    *,
    other_id: int | None = None,
    detail: str | None = None,
) -> None:
    """Append to a skill's history; inside a write."""
    change = SkillChange(
        skill_id=skill_id,
        created_at=utc_now(),
        actor=actor,
        event=event,
        other_id=other_id,
        detail=detail,
    )
    rows.insert(db, "skill_history", rows.encode(change))


def save_skill(
    db: Transaction,
    *,
    skill_id: int,
    title: str,
    tenant: str | None,
    task_key: str | None,
    embedder: str,
    centroid_D: Vector | None,
    count: int,
) -> None:
    """Store a new skill or move a known one's centroid; a person's title stays. Inside a write."""
    cursor = db.execute(
        """INSERT OR IGNORE INTO skills
            (id, title, created_at, policy, tenant, task_key, embedder, centroid, centroid_count)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            skill_id,
            title,
            rows.encode_value(utc_now()),
            SkillPolicy.LEARN,
            tenant,
            task_key,
            embedder,
            blob(centroid_D),
            count,
        ),
    )
    if cursor.rowcount:
        detail = None if task_key is None else f"metadata.task {task_key!r}"
        note(db, skill_id, SYSTEM, SkillEvent.FOUNDED, detail=detail)
        return
    db.execute(
        "UPDATE skills SET embedder = ?, centroid = ?, centroid_count = ? WHERE id = ?",
        (embedder, blob(centroid_D), count, skill_id),
    )


def place(db: Transaction, ids: Sequence[str], skill_id: int, *, was: int | None = None) -> int:
    """Put episodes, and the tasks derived from them, and tasks under a skill; inside a write.

    What has left the skill ``was`` (None: the pen) meanwhile stays where it is.

    Returns:
        How many episodes and tasks were put there.
    """
    num_placed = 0
    for id in ids:
        values = (skill_id, id, was)
        is_placed = db.execute(
            "UPDATE episodes SET skill_id = ? WHERE id = ? AND skill_id IS ?", values
        ).rowcount
        if is_placed:
            derived = (skill_id, f"episode:{id}")
            db.execute("UPDATE tasks SET skill_id = ? WHERE origin = ?", derived)
        num_placed += is_placed
        num_placed += db.execute(
            "UPDATE tasks SET skill_id = ? WHERE id = ? AND skill_id IS ?", values
        ).rowcount
    return num_placed


def let_wait(db: Transaction, ids: Sequence[str], *, was: int) -> int:
    """Let episodes of a skill wait for one again; inside a write.

    Tasks cannot wait, so they stay, as do episodes from which a task was derived.

    Returns:
        How many episodes wait again.
    """
    sql = """UPDATE episodes SET skill_id = NULL WHERE id = ? AND skill_id = ?
        AND NOT EXISTS (SELECT 1 FROM tasks WHERE origin = 'episode:' || episodes.id)"""
    return sum(db.execute(sql, (id, was)).rowcount for id in ids)


def num_waiting(db: Transaction, episode_ids: Sequence[str]) -> int:
    """Return how many of the episodes are still in the pen; inside a write."""
    sql = "SELECT COUNT(*) AS n FROM episodes WHERE id = ? AND skill_id IS NULL"
    return sum(next(db.query(sql, (id,)))["n"] for id in episode_ids)


def merge(db: Transaction, part: int, whole: int, *, actor: str) -> None:
    """Move all that a skill has to another, which it is from then on; inside a write.

    The other's guideline is the guideline of both, unless only this one has one; so are rubrics.
    """
    _hand_over_guideline(db, part, whole)
    db.execute(
        """UPDATE rubrics SET skill_id = ?1 WHERE skill_id = ?2
            AND NOT EXISTS (SELECT 1 FROM rubrics WHERE skill_id = ?1)""",
        (whole, part),
    )
    db.execute("UPDATE episodes SET skill_id = ? WHERE skill_id = ?", (whole, part))
    db.execute("UPDATE tasks SET skill_id = ? WHERE skill_id = ?", (whole, part))
    db.execute(
        "UPDATE skills SET merged_into = ? WHERE id = ? OR merged_into = ?", (whole, part, part)
    )
    note(db, part, actor, SkillEvent.MERGED_INTO, other_id=whole)
    note(db, whole, actor, SkillEvent.ABSORBED, other_id=part)
    measure(db, whole)


def _hand_over_guideline(db: Transaction, part: int, whole: int) -> None:
    """Let a part's versions follow upon those of the whole, where none of these is in force."""
    sql = """SELECT version, text FROM skill_guidelines WHERE skill_id = ?
        ORDER BY version DESC LIMIT 1"""
    [newest] = list(db.query(sql, (whole,))) or [{"version": 0, "text": ""}]
    if not newest["text"]:
        db.execute(
            "UPDATE skill_guidelines SET skill_id = ?, version = version + ? WHERE skill_id = ?",
            (whole, newest["version"], part),
        )


def found(
    db: Transaction, *, title: str, tenant: str | None, like: int | None, embedder: str | None
) -> int:
    """Make a skill without members; inside a write.

    Args:
        db: the connection inside the write.
        title: its name for now.
        tenant: whose it is.
        like: the skill whose policy it takes over.
        embedder: by which it will lie.

    Returns:
        Its id.
    """
    new_id = next_id(db)
    policy = "learn"
    if like is not None:
        policy = next(db.query("SELECT policy FROM skills WHERE id = ?", (like,)))["policy"]
    row = {
        "id": new_id,
        "title": title,
        "created_at": rows.encode_value(utc_now()),
        "policy": policy,
        "tenant": tenant,
        "embedder": embedder,
        "centroid_count": 0,
    }
    rows.insert(db, "skills", row)
    if like is None:
        note(db, new_id, SYSTEM, SkillEvent.FOUNDED)
    return new_id


def split_off(
    db: Transaction, skill_id: int, member_ids: Sequence[str], *, title: str, actor: str
) -> int:
    """Make some of a skill's episodes and tasks a skill of its own; inside a write.

    Returns:
        The new skill's id.
    """
    [known] = db.query("SELECT tenant, embedder FROM skills WHERE id = ?", (skill_id,))
    new_id = found(db, title=title, like=skill_id, **known)
    num_placed = place(db, member_ids, new_id, was=skill_id)
    detail = f"{num_placed} episodes or tasks"
    note(db, new_id, actor, SkillEvent.SPLIT_FROM, other_id=skill_id, detail=detail)
    note(db, skill_id, actor, SkillEvent.SPLIT_OFF, other_id=new_id, detail=detail)
    measure(db, skill_id)
    measure(db, new_id)
    return new_id


def sweep(db: Transaction) -> None:
    """Bring what came to a skill after it became part of another to the other; inside a write.

    A learning cycle goes on under the ids that it began with.
    """
    for table in ("episodes", "tasks"):
        db.execute(
            f"""UPDATE {table} SET skill_id =
                (SELECT merged_into FROM skills WHERE skills.id = {table}.skill_id)
                WHERE skill_id IN (SELECT id FROM skills WHERE merged_into IS NOT NULL)"""
        )


def rows_by_id(db: Transaction, skill_ids: Iterable[int]) -> list[SkillRow]:
    """Return skills as the regrouping reads them; inside a write."""
    ids = list(skill_ids)
    marks = ", ".join("?" * len(ids))
    found = db.query(f"{SKILL_SEEN} WHERE id IN ({marks})", ids)
    return [rows.decode(SkillRow, row) for row in found]


def set_title(db: Transaction, row: SkillRow, *, title: str, key_terms: Sequence[str]) -> None:
    """Set the title and key terms that the texts give a skill; inside a write."""
    db.execute(
        "UPDATE skills SET title = ?, key_terms = ? WHERE id = ?",
        (title, rows.encode_value(list(key_terms)), row.id),
    )
    if title != row.title:
        note(db, row.id, SYSTEM, SkillEvent.RENAMED, detail=f"{row.title} -> {title}")


def measure(db: Transaction, skill_id: int) -> None:
    """Set a skill's centroid to the mean of its newest members' vectors; inside a write."""
    embedder = next(db.query("SELECT embedder FROM skills WHERE id = ?", (skill_id,)))["embedder"]
    values = (skill_id, embedder, skill_id, embedder, MEASURED_MEMBERS)
    found = list(db.query(NEWEST_VECTORS, values))
    if not found:
        return  # what the centroid was measured on is gone; it still says where the skill lies
    vectors_ND = np.stack([vector_of(row["vector"]) for row in found])
    db.execute(
        "UPDATE skills SET centroid = ?, centroid_count = ? WHERE id = ?",
        (blob(vectors_ND.mean(axis=0)), len(found), skill_id),
    )


def set_vector(
    db: Transaction,
    id: str,
    *,
    of: VectorOf = VectorOf.EPISODE,
    embedder: str,
    vector_D: Vector | None,
    missing_reason: str | None,
    text_key: str | None = None,
) -> None:
    """Replace an episode's or task's embedding, or why it has none; inside a write.

    ``text_key`` names the text that was embedded. What does not exist any more gets none.
    """
    vectors, owner = ("vectors", "episode") if of is VectorOf.EPISODE else ("task_vectors", "task")
    db.execute(
        f"""INSERT OR REPLACE INTO {vectors}
            ({owner}_id, embedder, vector, missing_reason, text_key)
            SELECT id, ?, ?, ?, ? FROM {owner}s WHERE id = ?""",
        (embedder, blob(vector_D), missing_reason, text_key, id),
    )


def newest_change(db: Transaction) -> int:
    """Return the number of the newest entry in the history; inside a write."""
    return int(next(db.query(NEWEST_CHANGE))["id"])


def next_id(db: Transaction) -> int:
    """Return the id of the next skill; ids are not used twice."""
    return int(next(db.query("SELECT COALESCE(MAX(id), 0) + 1 AS id FROM skills"))["id"])


def require_unmerged(db: Transaction, *skill_ids: int) -> None:
    """Check inside a write that the skills are still skills of their own.

    Raises:
        ConflictError: one has become part of another since it was read.
    """
    for skill_id in skill_ids:
        sql = "SELECT merged_into FROM skills WHERE id = ?"
        if (into := next(db.query(sql, (skill_id,)))["merged_into"]) is not None:
            raise ConflictError(f"skill {skill_id} has become part of skill {into}")


def blob(vector_D: Vector | None) -> bytes | None:
    """Return a vector as it is stored: little-endian float32."""
    return None if vector_D is None else np.asarray(vector_D, dtype="<f4").tobytes()


def vector_of(stored: bytes) -> Vector:
    """Return a stored vector, float32 [D]."""
    return np.frombuffer(stored, dtype="<f4").astype(np.float32)


def skills_of(db: Transaction, episode_ids: Sequence[str]) -> Mapping[str, int | None]:
    """Return the skill of each episode that exists."""
    found = {}
    for episode_id in episode_ids:
        for row in db.query("SELECT skill_id FROM episodes WHERE id = ?", (episode_id,)):
            found[episode_id] = row["skill_id"]
    return found


def has_others(db: Transaction, skill_id: int, episode_ids: Sequence[str]) -> bool:
    """Say whether a skill has more episodes than these."""
    sql = "SELECT COUNT(*) AS n FROM episodes WHERE skill_id = ? AND source != 'practice'"
    return int(next(db.query(sql, (skill_id,)))["n"]) > len(set(episode_ids))
