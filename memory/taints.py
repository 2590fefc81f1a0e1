"""Which versions learned from what was erased, or descend from one that did.

What is live goes on answering until a person decides, and becomes ``tainted`` when it is left; any
other cannot become live any more. It does not know what was erased, nor why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memory import rows
from memory.database import Transaction
from memory.store import Store
from memory.types import VersionStatus, utc_now
from memory.version_store import BASE

Saw = tuple[int, str | None]
"""Erased episodes that a version learned from itself, and the parent that it has others from."""


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


TAUGHT = """SELECT version_id, COUNT(*) AS n FROM version_episodes
    WHERE episode_id IN ({marks}) GROUP BY version_id"""


def taint(db: Transaction, episode_ids: Sequence[str], erasure_id: str) -> dict[str, Saw]:
    """Mark the versions that learned from these episodes, and their descendants; inside a write.

    Returns:
        As ``descendants``.
    """
    sql = TAUGHT.format(marks=", ".join("?" * len(episode_ids)))
    taught = {row["version_id"]: row["n"] for row in db.query(sql, tuple(episode_ids))}
    found = db.query("SELECT id, parent FROM adapter_versions ORDER BY id")
    parents = {row["id"]: row["parent"] for row in found}
    seen = descendants(parents, taught)
    for version, (num_episodes, inherited_from) in seen.items():
        _taint(db, version, erasure_id, num_episodes, inherited_from)
    return seen


def _taint(
    db: Transaction, version: str, erasure_id: str, num_episodes: int, inherited_from: str | None
) -> None:
    db.execute(
        """INSERT INTO version_taints
            (version_id, created_at, erasure_id, num_episodes, inherited_from)
            VALUES (?, ?, ?, ?, ?) ON CONFLICT (version_id) DO UPDATE SET
            num_episodes = num_episodes + excluded.num_episodes,
            inherited_from = COALESCE(inherited_from, excluded.inherited_from)""",
        (version, rows.encode_value(utc_now()), erasure_id, num_episodes, inherited_from),
    )
    db.execute(
        "UPDATE adapter_versions SET status = ? WHERE id = ? AND status != ?",
        (VersionStatus.TAINTED, version, VersionStatus.LIVE),
    )


def parents_of(store: Store) -> dict[str, str]:
    """Return each version's parent, oldest version first."""
    return {version.id: version.parent for version in reversed(store.versions.all())}


def descendants(parents: Mapping[str, str], taught: Mapping[str, int]) -> dict[str, Saw]:
    """Return versions and all that were trained further from them, with what each saw itself.

    Args:
        parents: each version's parent, oldest version first, so that a parent precedes.
        taught: version -> how many erased episodes it learned from itself.
    """
    found: dict[str, Saw] = {name: (num, None) for name, num in taught.items()}
    for version, parent in parents.items():
        if parent in found and parent != BASE:
            found[version] = (found.get(version, (0, None))[0], parent)
    return found


def described(store: Store, versions: Mapping[str, Saw]) -> list[Tainted]:
    """Describe versions, newest first."""
    live = store.versions.live()
    known = {version.id: version for version in store.versions.all()}
    dirty = {*versions, *store.versions.taints()}
    told = []
    for name, (num_episodes, source) in sorted(versions.items(), reverse=True):
        version, ancestor = known[name], known[name].parent
        while ancestor in dirty:
            ancestor = known[ancestor].parent
        sql = "SELECT skill_id FROM cycle_skills WHERE cycle_id = ? ORDER BY skill_id"
        skills = [row["skill_id"] for row in store.database.read(sql, (version.cycle_id,))]
        told.append(
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
    return told
