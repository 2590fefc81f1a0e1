"""Rows of skills: discovered task types, their centroids, what is new in them, and their history.

Ids are stable: a skill that became part of another keeps its row, which says of which. It does not
know how task types are told apart.
"""

from collections.abc import Sequence
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.embed import EMPTY, Vector
from memory.errors import InvalidRequestError, NotFoundError
from memory.graded_episodes import GRADED, REPLAYABLE
from memory.skill_writes import (
    MEASURED_MEMBERS,
    NEWEST_CHANGE,
    NEWEST_VECTORS,
    PERSON,
    SKILL_SEEN,
    SkillRow,
    blob,
    has_others,
    merge,
    note,
    require_unmerged,
    skills_of,
    split_off,
)
from memory.tenants import EVERYTHING, Sight
from memory.titles import title_of
from memory.types import Skill, SkillChange, SkillEvent, SkillPolicy, task_text

# New signal: live episodes that were graded, and tasks that a person brought, since the last cycle
# on the skill began. Tasks derived from episodes are left out: their episodes count already.
SKILL_ROWS = """
    WITH since AS (
        SELECT s.id AS skill_id, COALESCE(MAX(c.created_at), '') AS at FROM skills s
        LEFT JOIN cycle_skills cs ON cs.skill_id = s.id
        LEFT JOIN cycles c ON c.id = cs.cycle_id AND c.state NOT IN ('failed', 'interrupted')
        GROUP BY s.id
    ), live AS (
        SELECT e.skill_id, COUNT(*) AS num_episodes, COUNT(outcome_value) AS num_graded,
            AVG(outcome_value) AS mean_outcome,
            SUM(outcome_value IS NOT NULL AND e.learn AND since.at < (
                SELECT MAX(g.created_at) FROM grades g
                WHERE g.episode_id = e.id AND g.superseded_at IS NULL)) AS num_new
        FROM episodes e JOIN since ON since.skill_id = e.skill_id
        WHERE source != 'practice' GROUP BY e.skill_id
    ), unique_work AS (
        SELECT skill_id, COUNT(*) AS num, MAX(outcome_value) > MIN(outcome_value) AS differ
        FROM episodes e WHERE {unique_work} GROUP BY skill_id
    ), work AS (
        SELECT t.skill_id, SUM(split = 'train') AS num_train, SUM(split = 'heldout') AS num_heldout,
            SUM(origin NOT LIKE 'episode:%' AND t.created_at > since.at) AS num_new
        FROM tasks t JOIN since ON since.skill_id = t.skill_id GROUP BY t.skill_id
    )
    SELECT s.id, s.title, s.created_at, s.policy, s.task_key, s.tenant, s.key_terms, s.is_kept,
        COALESCE(u.num, 0) AS num_live_graded, COALESCE(u.differ, 0) AS has_live_contrast,
        COALESCE(live.num_episodes, 0) AS num_episodes, COALESCE(live.num_graded, 0) AS num_graded,
        live.mean_outcome, COALESCE(work.num_train, 0) AS num_train_tasks,
        COALESCE(work.num_heldout, 0) AS num_heldout_tasks,
        COALESCE(live.num_new, 0) + COALESCE(work.num_new, 0) AS num_new_signal
    FROM skills s LEFT JOIN live ON live.skill_id = s.id LEFT JOIN work ON work.skill_id = s.id
    LEFT JOIN unique_work u ON u.skill_id = s.id
""".format(unique_work=f"{GRADED} AND NOT {REPLAYABLE}")


class SkillStore:
    """Reads and writes skills."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> list[Skill]:
        """Return every skill with its counts, oldest first; none that became part of another."""
        sql = SKILL_ROWS + " WHERE s.merged_into IS NULL ORDER BY s.id"
        return [rows.decode(Skill, row) for row in self._db.read(sql)]

    def get(self, skill_id: int) -> Skill:
        """Return one skill; for one that became part of another, the other.

        Raises:
            NotFoundError: there is none of this id.
        """
        sql = SKILL_ROWS + " WHERE s.id = (SELECT COALESCE(merged_into, id) FROM skills WHERE id=?)"
        found = self._db.read(sql, (skill_id,))
        if not found:
            raise NotFoundError(f"there is no skill {skill_id}", param="skill")
        return rows.decode(Skill, found[0])

    def history(self, skill_id: int) -> list[SkillChange]:
        """Return what happened to a skill, oldest first."""
        sql = "SELECT * FROM skill_history WHERE skill_id = ? ORDER BY id"
        return [rows.decode(SkillChange, row) for row in self._db.read(sql, (skill_id,))]

    def centroids(self, embedder: str) -> list[dict[str, Any]]:
        """Return what the assigner starts from: all skills, also those that became part of others.

        A centroid of another embedder is left out: nothing can be compared with it.
        """
        sql = """SELECT id, title, tenant, task_key, merged_into, centroid_count,
            CASE WHEN embedder = ? THEN centroid END AS centroid FROM skills ORDER BY id"""
        return self._db.read(sql, (embedder,))

    def pen(self, embedder: str, limit: int, sight: Sight = EVERYTHING) -> list[dict[str, Any]]:
        """Return the newest live episodes that no skill has been found for, oldest first."""
        sql = f"""SELECT e.id, e.tenant, e.task_text, v.vector FROM episodes e
            JOIN vectors v ON v.episode_id = e.id
            WHERE e.skill_id IS NULL AND e.source != 'practice' AND v.embedder = ?
                AND v.vector IS NOT NULL AND {sight.clause} ORDER BY e.id DESC LIMIT ?"""
        return self._db.read(sql, (embedder, limit))[::-1]

    def tenants(self) -> list[str | None]:
        """Return whose episodes or skills there are."""
        sql = """SELECT tenant FROM skills UNION
            SELECT tenant FROM episodes WHERE skill_id IS NULL AND source != 'practice'"""
        return [row["tenant"] for row in self._db.read(sql)]

    def rows_of(self, sight: Sight) -> list[SkillRow]:
        """Return the skills that are no part of another."""
        sql = f"{SKILL_SEEN} WHERE merged_into IS NULL AND {sight.clause} ORDER BY id"
        return [rows.decode(SkillRow, row) for row in self._db.read(sql)]

    def members(
        self, skill_id: int, embedder: str, limit: int, *, after: int = 0
    ) -> list[tuple[str, bytes]]:
        """Return id and vector of a skill's newest episodes and tasks, the ``after`` newest apart.

        The newest comes first.
        """
        values = (skill_id, embedder, skill_id, embedder, limit, after)
        found = self._db.read(f"{NEWEST_VECTORS} OFFSET ?", values)
        return [(str(row["id"]), row["vector"]) for row in found]

    def num_members(self, skill_id: int) -> int:
        """Count a skill's episodes, practice left out, and tasks."""
        sql = """SELECT (SELECT COUNT(*) FROM episodes WHERE skill_id = ? AND source != 'practice')
            + (SELECT COUNT(*) FROM tasks WHERE skill_id = ?) AS number"""
        return int(self._db.read(sql, (skill_id, skill_id))[0]["number"])

    def texts(self, ids: Sequence[str]) -> dict[str, str]:
        """Return what episodes and tasks ask, by id."""
        found: dict[str, str] = {}
        for part in (ids[at : at + 500] for at in range(0, len(ids), 500)):
            marks = ", ".join("?" * len(part))
            sql = f"SELECT id, task_text FROM episodes WHERE id IN ({marks})"
            found |= {row["id"]: row["task_text"] for row in self._db.read(sql, tuple(part))}
            sql = f"SELECT id, messages FROM tasks WHERE id IN ({marks})"
            for row in self._db.read(sql, tuple(part)):
                found[row["id"]] = task_text(rows.loads(row["messages"]))
        return found

    def newest_change(self) -> int:
        """Return the number of the newest entry in the history; it grows with each change."""
        return int(self._db.read(NEWEST_CHANGE)[0]["id"])

    def newest_texts(self, limit: int) -> list[dict[str, Any]]:
        """Return tenant and task text of the newest live episodes, oldest first."""
        sql = """SELECT tenant, task_text FROM episodes WHERE source != 'practice'
            ORDER BY id DESC LIMIT ?"""
        return self._db.read(sql, (limit,))[::-1]

    def newest_texts_of(self, skill_id: int, limit: int) -> list[str]:
        """Return what the newest of a skill's episodes and tasks ask."""
        sql = """SELECT task_text FROM episodes WHERE skill_id = ? AND source != 'practice'
            ORDER BY id DESC LIMIT ?"""
        texts = [str(row["task_text"]) for row in self._db.read(sql, (skill_id, limit))]
        sql = "SELECT messages FROM tasks WHERE skill_id = ? LIMIT ?"
        found = self._db.read(sql, (skill_id, limit - len(texts)))
        return texts + [task_text(rows.loads(row["messages"])) for row in found]

    def embedded_by_others(self, embedder: str, limit: int) -> list[dict[str, Any]]:
        """Return the newest episodes whose vector is another embedder's."""
        sql = """SELECT e.id, e.tenant, e.task_text FROM vectors v
            JOIN episodes e ON e.id = v.episode_id
            WHERE v.embedder != ? ORDER BY e.id DESC LIMIT ?"""
        return self._db.read(sql, (embedder, limit))

    def without_vector(self, embedder: str, *, after: str, limit: int) -> list[dict[str, Any]]:
        """Return episodes past an id of whose text an embedder made no vector, though it has words.

        In the order of their ids.
        """
        sql = """SELECT e.id, e.tenant, e.task_text FROM vectors v
            JOIN episodes e ON e.id = v.episode_id
            WHERE v.embedder = ? AND length(v.vector) IS NULL AND v.missing_reason != ?
                AND e.id > ? ORDER BY e.id LIMIT ?"""
        return self._db.read(sql, (embedder, EMPTY, after, limit))

    def newest_long_texts(self, characters: int, limit: int) -> list[dict[str, Any]]:
        """Return the newest live episodes with a long text, and what was embedded of it."""
        sql = """SELECT e.id, e.tenant, e.task_text, v.text_key FROM episodes e
            JOIN vectors v ON v.episode_id = e.id
            WHERE e.source != 'practice' AND LENGTH(e.task_text) >= ? AND v.text_key IS NOT NULL
                AND e.id IN (SELECT id FROM episodes WHERE source != 'practice'
                    ORDER BY id DESC LIMIT ?)"""
        return self._db.read(sql, (characters, limit))

    def placed_by_others(self, embedder: str) -> list[dict[str, Any]]:
        """Return id and tenant of the skills whose centroid is another embedder's."""
        sql = """SELECT id, tenant FROM skills WHERE embedder IS NOT ? AND merged_into IS NULL
            AND centroid IS NOT NULL"""
        return self._db.read(sql, (embedder,))

    def move(self, skill_id: int, *, embedder: str, centroid_D: Vector, count: int) -> None:
        """Set where a skill lies; waits for the commit."""
        sql = "UPDATE skills SET embedder = ?, centroid = ?, centroid_count = ? WHERE id = ?"
        values = (embedder, blob(centroid_D), count, skill_id)
        self._db.write(lambda db: db.execute(sql, values))

    def update(self, skill_id: int, *, title: str | None, policy: SkillPolicy | None) -> Skill:
        """Rename a skill or change whether it may be learned; None leaves a field as it is.

        Raises:
            NotFoundError: there is none of this id.
            ConflictError: it became part of another meanwhile.
        """
        known = self.get(skill_id)

        def write(db: Transaction) -> None:
            require_unmerged(db, known.id)
            db.execute(
                """UPDATE skills SET title = COALESCE(?, title), policy = COALESCE(?, policy),
                    is_kept = is_kept OR ? WHERE id = ?""",
                (title, policy, title is not None, known.id),
            )
            if title is not None:
                renamed = f"{known.title} -> {title}"
                note(db, known.id, PERSON, SkillEvent.RENAMED, detail=renamed)
            if policy not in {None, known.policy}:
                changed = f"{known.policy} -> {policy}"
                note(db, known.id, PERSON, SkillEvent.POLICY, detail=changed)

        self._db.write(write)
        return self.get(skill_id)

    def merge(self, skill_id: int, into: int) -> Skill:
        """Make a skill a part of another at a person's word; return the other.

        Raises:
            NotFoundError: one of them does not exist.
            InvalidRequestError: they are the same, or belong to two tenants.
        """
        part, whole = self.get(skill_id), self.get(into)
        if part.id == whole.id:
            raise InvalidRequestError(f"skill {skill_id} is skill {into} already", param="into")
        if part.tenant != whole.tenant:
            raise InvalidRequestError(
                f"skills {part.id} and {whole.id} belong to two tenants", param="into"
            )

        def write(db: Transaction) -> None:
            require_unmerged(db, part.id, whole.id)
            merge(db, part.id, whole.id, actor=PERSON)
            db.execute("UPDATE skills SET is_kept = 1 WHERE id = ?", (whole.id,))

        self._db.write(write)
        return self.get(whole.id)

    def split(self, skill_id: int, episode_ids: Sequence[str], title: str | None) -> Skill:
        """Make some of a skill's episodes a skill of its own at a person's word; return it.

        Without a title, their texts give it one.

        Raises:
            NotFoundError: the skill, or one of the episodes, does not exist.
            InvalidRequestError: an episode is of another skill, or none would be left.
        """
        known = self.get(skill_id)
        title = title or title_of(list(self.texts(episode_ids[:MEASURED_MEMBERS]).values()))

        def write(db: Transaction) -> int:
            require_unmerged(db, known.id)
            found = skills_of(db, episode_ids)
            for episode_id in episode_ids:
                if episode_id not in found:
                    raise NotFoundError(f"there is no episode {episode_id!r}", param="episode_ids")
                if found[episode_id] != known.id:
                    raise InvalidRequestError(
                        f"episode {episode_id} is not of skill {known.id}", param="episode_ids"
                    )
            if not has_others(db, known.id, episode_ids):
                raise InvalidRequestError(
                    f"skill {known.id} has no other episodes: rename it instead",
                    param="episode_ids",
                )
            new_id = split_off(db, known.id, episode_ids, title=title, actor=PERSON)
            db.execute("UPDATE skills SET is_kept = 1 WHERE id IN (?, ?)", (known.id, new_id))
            return new_id

        return self.get(self._db.write(write))
