"""Takes episodes out of the record for good, and says which weights they have taught.

Rows go with all that hangs on them: calls, feedback, grades, vectors, tasks made from them and the
practice on those tasks. What remains is an audit row without content, the erased ids, so that
nothing on its way into the file brings them back, and a taint on every version that learned from
them, or descends from one that did. It does not know what lies in files beside the database.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from memory import rows
from memory.database import Transaction
from memory.errors import InvalidRequestError, NotFoundError
from memory.scrubbing import needles_of
from memory.skill_writes import PERSON, measure, note
from memory.store import Store
from memory.tenants import Sight
from memory.titles import title_of
from memory.types import SkillEvent, VersionStatus, new_id, utc_now
from memory.version_store import BASE

BATCH = 200  # episodes in one write, so that records do not wait long behind it
MAX_ROUNDS = 5
"""Looks for what was recorded in the scope while it was being erased; a session may be in use."""
RECALLED_AGAIN = "erased"  # a prompt of another episode held what was erased
SAMPLED_TEXTS = 200  # of a skill, to find it a title that others' texts give it too
MAX_TEXTS, MAX_NEEDLES = 5_000, 5_000
"""Of one erasure: to look for more of them in every file would take minutes."""
HANGING = ("feedback", "grades", "vectors", "calls")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What is to be erased: one episode, or all of a session, a user, or a tenant.

    Example:
        ``Scope(session="s-17", tenant="acme")``: a session or user may be narrowed to a tenant.
    """

    episode: str | None = None
    session: str | None = None
    user: str | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        named = [self.episode, self.session, self.user]
        if sum(one is not None for one in named) > 1 or (self.episode and self.tenant):
            raise InvalidRequestError("name one of episode, session and user")
        if not any(self.parts):
            raise InvalidRequestError("name an episode, a session, a user or a tenant")
        if self.tenant is not None:
            Sight(self.tenant)

    @property
    def parts(self) -> dict[str, str]:
        """What is named, by kind."""
        named = {name: getattr(self, name) for name in ("episode", "session", "user", "tenant")}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def kind(self) -> str:
        """What is named, in words: ``session of tenant``."""
        return " of ".join(self.parts)

    @property
    def sha256(self) -> str:
        """What is named, as the audit keeps it."""
        return hashlib.sha256("\0".join(self.parts.values()).encode()).hexdigest()

    @property
    def condition(self) -> tuple[str, tuple[str, ...]]:
        """What finds its episodes, as SQL over ``episodes``."""
        clauses = {
            "episode": "id = ?",
            "session": "(session = ? OR id IN (SELECT episode_id FROM calls WHERE session = ?))",
            "user": "user = ?",
            "tenant": "tenant = ?",
        }
        named = self.parts
        values = [[value] * clauses[kind].count("?") for kind, value in named.items()]
        return " AND ".join(clauses[kind] for kind in named), tuple(v for vs in values for v in vs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tainted:
    """A version that learned from what was erased, and what a person can do about it."""

    version: str
    status: VersionStatus
    is_live: bool
    num_episodes: int  # of its training set that were erased; 0: only its ancestors' weights are
    inherited_from: str | None
    cycle_id: str | None
    skills: Sequence[int]  # to learn again
    clean_ancestor: str  # the nearest version before it that holds nothing of it


@dataclass(slots=True)
class Erased:
    """What has been erased so far."""

    id: str
    counts: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)  # version -> erased episodes it saw
    tasks: list[str] = field(default_factory=list)  # task texts, by which skills may be named
    needles: set[str] = field(default_factory=set)  # what must not be found in any file
    skills: set[int] = field(default_factory=set)


class Erasure:
    """Erases from the database."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._db = store.database

    def find(self, scope: Scope) -> list[str]:
        """Return the ids of a scope's episodes, practice on their tasks included.

        Raises:
            NotFoundError: a single episode was named, and there is none.
        """
        where, values = scope.condition
        sql = f"""WITH own AS (SELECT id FROM episodes WHERE {where}),
            derived AS (SELECT id FROM tasks WHERE origin IN (SELECT 'episode:' || id FROM own))
            SELECT id FROM own UNION SELECT id FROM episodes
                WHERE source = 'practice' AND task_id IN (SELECT id FROM derived)"""
        found = [str(row["id"]) for row in self._db.read(sql, values)]
        if scope.episode is not None and not found:
            raise NotFoundError(f"there is no episode {scope.episode!r}", param="episode")
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
            origins = tuple(f"episode:{id}" for id in ids)
            sql = f"SELECT COUNT(*) AS n FROM tasks WHERE origin IN ({marks})"
            counts["tasks"] += self._db.read(sql, origins)[0]["n"]
            for row in self._db.read(_TAUGHT.format(marks=marks), tuple(ids)):
                versions[row["version_id"]] += row["n"]
        return {
            "counts": dict(counts),
            "tainted": self.tainted(_descendants(self._store, versions)),
        }

    async def begin(self, scope: Scope, *, actor: str) -> Erased:
        """Write down that an erasure begins."""
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
        await self._db.write_async(lambda db: rows.insert(db, "erasures", row))
        return erased

    async def erase(self, ids: Sequence[str], erased: Erased) -> None:
        """Delete episodes and all that hangs on them, some at a time."""
        for batch in _batches(ids):
            await self._db.write_async(lambda db, batch=batch: self._erase(db, batch, erased))  # type: ignore[misc]

    async def end(self, erased: Erased) -> list[Tainted]:
        """Taint versions, measure skills anew, and close the audit row."""

        def write(db: Transaction) -> None:
            for skill_id in sorted(erased.skills):
                _settle_skill(db, skill_id, erased.tasks)
                note(db, skill_id, PERSON, SkillEvent.ERASED)
            tainted = _descendants(self._store, erased.versions)
            for version, (num, source) in tainted.items():
                taint(db, version, erased.id, num_episodes=num, inherited_from=source)
            db.execute(
                "UPDATE erasures SET ended_at = ?, counts = ?, tainted = ? WHERE id = ?",
                (
                    rows.encode_value(utc_now()),
                    rows.encode_value(dict(erased.counts)),
                    rows.encode_value(sorted(tainted)),
                    erased.id,
                ),
            )

        await self._db.write_async(write)
        return self.tainted(_descendants(self._store, erased.versions))

    def tainted(self, versions: Mapping[str, tuple[int, str | None]]) -> list[Tainted]:
        """Describe versions, newest first."""
        live = self._store.versions.live()
        known = {version.id: version for version in self._store.versions.all()}
        dirty = {*versions, *self._store.versions.taints()}
        described = []
        for name, (num_episodes, source) in sorted(versions.items(), reverse=True):
            version, ancestor = known[name], known[name].parent
            while ancestor in dirty:
                ancestor = known[ancestor].parent
            sql = "SELECT skill_id FROM cycle_skills WHERE cycle_id = ? ORDER BY skill_id"
            skills = [row["skill_id"] for row in self._db.read(sql, (version.cycle_id,))]
            described.append(
                Tainted(
                    version=name,
                    status=version.status,
                    is_live=name == live,
                    num_episodes=num_episodes,
                    inherited_from=source,
                    cycle_id=version.cycle_id,
                    skills=skills,
                    clean_ancestor=ancestor,
                )
            )
        return described

    def all(self) -> list[dict[str, Any]]:
        """Return the audit rows, newest first."""
        found = self._db.read("SELECT * FROM erasures ORDER BY id DESC")
        return [
            row | {"counts": rows.loads(row["counts"]), "tainted": rows.loads(row["tainted"])}
            for row in found
        ]

    def _erase(self, db: Transaction, ids: Sequence[str], erased: Erased) -> None:
        """Delete some episodes; inside a write."""
        marks = ", ".join("?" * len(ids))
        own = tuple(ids)
        found = list(db.query(f"SELECT * FROM episodes WHERE id IN ({marks})", own))
        erased.skills |= {row["skill_id"] for row in found if row["skill_id"] is not None}
        calls = list(
            db.query(
                f"SELECT request, message, error FROM calls WHERE episode_id IN ({marks})", own
            )
        )
        said = list(
            db.query(f"SELECT comment, correction FROM feedback WHERE episode_id IN ({marks})", own)
        )
        erased.tasks += [row["task_text"] for row in found][: MAX_TEXTS - len(erased.tasks)]
        told = [{key: row[key] for key in ("task_text", "reference")} for row in found]
        for text in (text for row in (*told, *calls, *said) for text in row.values() if text):
            if len(erased.needles) < MAX_NEEDLES:
                erased.needles |= needles_of(text)
        origins = tuple(f"episode:{id}" for id in ids)
        tasks = [
            str(row["id"])
            for row in db.query(f"SELECT id FROM tasks WHERE origin IN ({marks})", origins)
        ]
        db.conn.executemany(
            "INSERT OR IGNORE INTO erased_ids (id, erasure_id) VALUES (?, ?)",
            [(id, erased.id) for id in (*ids, *tasks)],
        )
        others = _recalled_elsewhere(db, own)
        for episode_id in others:
            _forget_recalled(db, episode_id, own)
            self._store.episodes.forget_newest()
        for row in db.query(
            _TAUGHT.format(marks=", ".join("?" * len((*own, *others)))), (*own, *others)
        ):
            erased.versions[row["version_id"]] += row["n"]
        for table in HANGING:
            cursor = db.execute(f"DELETE FROM {table} WHERE episode_id IN ({marks})", own)
            erased.counts[table] += cursor.rowcount
        cursor = db.execute(f"DELETE FROM tasks WHERE origin IN ({marks})", origins)
        erased.counts["tasks"] += cursor.rowcount
        erased.counts["episodes"] += db.execute(
            f"DELETE FROM episodes WHERE id IN ({marks})", own
        ).rowcount


_TAUGHT = """SELECT version_id, COUNT(*) AS n FROM version_episodes
    WHERE episode_id IN ({marks}) GROUP BY version_id"""


def taint(
    db: Transaction,
    version: str,
    erasure_id: str,
    *,
    num_episodes: int,
    inherited_from: str | None = None,
) -> None:
    """Mark a version as having learned from what was erased; inside a write.

    What is live goes on answering until a person decides, and becomes ``tainted`` when it is left;
    any other cannot become live any more.
    """
    db.execute(
        """INSERT INTO version_taints
            (version_id, created_at, erasure_id, num_episodes, inherited_from)
            VALUES (?, ?, ?, ?, ?) ON CONFLICT (version_id) DO UPDATE SET
            num_episodes = num_episodes + excluded.num_episodes""",
        (version, rows.encode_value(utc_now()), erasure_id, num_episodes, inherited_from),
    )
    db.execute(
        "UPDATE adapter_versions SET status = ? WHERE id = ? AND status != ?",
        (VersionStatus.TAINTED, version, VersionStatus.LIVE),
    )


def _descendants(store: Store, versions: Mapping[str, int]) -> dict[str, tuple[int, str | None]]:
    """Return versions and all that were trained further from them, with what each saw itself."""
    found: dict[str, tuple[int, str | None]] = {name: (num, None) for name, num in versions.items()}
    for version in reversed(store.versions.all()):  # a parent is older
        if version.parent in found and version.parent != BASE:
            num_own = found.get(version.id, (0, None))[0]
            found[version.id] = (num_own, version.parent)
    return found


def _recalled_elsewhere(db: Transaction, ids: Sequence[str]) -> list[str]:
    """Return other episodes in whose prompts something of these was recalled."""
    marks = ", ".join("?" * len(ids))
    sql = f"""SELECT DISTINCT episode_id FROM calls, json_each(recalled, '$.episodes') AS one
        WHERE recalled IS NOT NULL AND json_extract(one.value, '$.id') IN ({marks})
        AND episode_id NOT IN ({marks})"""
    return [str(row["episode_id"]) for row in db.query(sql, (*ids, *ids))]


def _forget_recalled(db: Transaction, episode_id: str, ids: Collection[str]) -> None:
    """Take what was recalled, and the tokens that spell it, out of another episode's calls."""
    sql = "SELECT id, recalled FROM calls WHERE episode_id = ? AND recalled IS NOT NULL"
    for row in list(db.query(sql, (episode_id,))):
        told = rows.loads(row["recalled"])
        told["episodes"] = [one for one in told["episodes"] if one["id"] not in ids]
        told |= {"block": None, "erased": True}
        db.execute(
            "UPDATE calls SET recalled = ? WHERE id = ?", (rows.encode_value(told), row["id"])
        )
    db.execute(
        """UPDATE calls SET prompt_token_ids = NULL, completion_token_ids = NULL,
            sampler_logprobs = NULL, shared = json_remove(shared, '$.tokens'), withheld = ?
            WHERE episode_id = ?""",
        (RECALLED_AGAIN, episode_id),
    )


def _settle_skill(db: Transaction, skill_id: int, erased_texts: Iterable[str]) -> None:
    """Let a skill, and what became part of it, be what its remaining texts make of it."""
    sql = "SELECT id, title, key_terms, is_kept FROM skills WHERE id = ? OR merged_into = ?"
    left = [
        row["task_text"]
        for row in db.query(
            """SELECT task_text FROM episodes WHERE skill_id = ? AND source != 'practice'
                ORDER BY id DESC LIMIT ?""",
            (skill_id, SAMPLED_TEXTS),
        )
    ]
    has_tasks = any(db.query("SELECT 1 FROM tasks WHERE skill_id = ? LIMIT 1", (skill_id,)))
    if not left and not has_tasks:
        db.execute(
            """UPDATE skills SET task_key = NULL, centroid = NULL, centroid_count = 0
                WHERE id = ? OR merged_into = ?""",
            (skill_id, skill_id),
        )
    else:
        measure(db, skill_id)
    gone, remaining = " ".join(erased_texts).lower(), " ".join(left).lower()
    for row in list(db.query(sql, (skill_id, skill_id))):
        words = f"{row['title']} {' '.join(rows.loads(row['key_terms']))}".lower().split()
        if row["is_kept"] or not any(word in gone and word not in remaining for word in words):
            continue
        title = title_of(left) if left else f"skill {row['id']}"
        db.execute("UPDATE skills SET title = ?, key_terms = '[]' WHERE id = ?", (title, row["id"]))
        db.execute("UPDATE skill_history SET detail = NULL WHERE skill_id = ?", (row["id"],))


def _batches(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))
