"""Rows of adapter versions, of what taught them, and of the pointer that says which one is live."""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from memory import rows
from memory.database import Database, Transaction
from memory.errors import ConflictError, NotFoundError
from memory.types import (
    VERSION_TRANSITIONS,
    AdapterVersion,
    PointerMove,
    VersionStatus,
    utc_now,
)

BASE = "base"
NO_WAY_BACK = {VersionStatus.ROLLED_BACK, VersionStatus.TAINTED}
VERSION_NAME = re.compile(r"denizen-\d{6}", re.ASCII)


class VersionStore:
    """Reads and writes versions and pointer moves."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> list[AdapterVersion]:
        """Return every version, newest first."""
        found = self._db.read("SELECT * FROM adapter_versions ORDER BY id DESC")
        return [rows.decode(AdapterVersion, row) for row in found]

    def get(self, version_id: str) -> AdapterVersion:
        """Return one version.

        Raises:
            NotFoundError: there is none of this name, or it is no name of a version at all.
        """
        found = self._db.read("SELECT * FROM adapter_versions WHERE id = ?", (version_id,))
        if not found:
            raise NotFoundError(f"there is no adapter version {version_id!r:.100}")
        return rows.decode(AdapterVersion, found[0])

    def of_cycle(self, cycle_id: str) -> AdapterVersion | None:
        """Return the version that a cycle has made; None before that."""
        found = self._db.read("SELECT * FROM adapter_versions WHERE cycle_id = ?", (cycle_id,))
        return rows.decode(AdapterVersion, found[0]) if found else None

    def add(self, version: AdapterVersion, episode_ids: Iterable[str]) -> None:
        """Store a version and the episodes that taught it, with their outcomes as they are now.

        Waits for the commit.
        """

        def write(db: Transaction) -> None:
            rows.insert(db, "adapter_versions", rows.encode(version))
            db.conn.executemany(
                """INSERT OR IGNORE INTO version_episodes
                    (version_id, episode_id, outcome_value, outcome_provenance)
                    VALUES (?1, ?2, (SELECT outcome_value FROM episodes WHERE id = ?2),
                        (SELECT outcome_provenance FROM episodes WHERE id = ?2))""",
                [(version.id, episode_id) for episode_id in episode_ids],
            )
            _taint_if_erased(db, version)

        self._db.write(write)

    def set_status(self, version_id: str, status: VersionStatus) -> None:
        """Move a version to another status.

        Raises:
            ConflictError: the transition table has no such step.
        """
        self._db.write(lambda db: _set_status(db, version_id, status))

    def reject_unproven(self, cycle_id: str) -> None:
        """Reject the candidate of a cycle that ended before its gate did."""
        sql = """UPDATE adapter_versions SET status = ? WHERE cycle_id = ? AND status = ?
            AND (SELECT gate FROM cycles WHERE id = cycle_id) IS NULL"""
        values = (VersionStatus.REJECTED, cycle_id, VersionStatus.CANDIDATE)
        self._db.write(lambda db: db.execute(sql, values))

    def moves(self) -> list[PointerMove]:
        """Return every pointer move, oldest first."""
        found = self._db.read("SELECT * FROM pointer_moves ORDER BY id")
        return [rows.decode(PointerMove, row) for row in found]

    def live(self) -> str:
        """Return what the pointer names: a version, or "base" before the first move."""
        found = self._db.read("SELECT to_version FROM pointer_moves ORDER BY id DESC LIMIT 1")
        return str(found[0]["to_version"]) if found else BASE

    def live_at(self, instant: datetime) -> str:
        """Return what was live at an instant (UTC)."""
        sql = "SELECT to_version FROM pointer_moves WHERE created_at <= ? ORDER BY id DESC LIMIT 1"
        found = self._db.read(sql, (rows.encode_value(instant),))
        return str(found[0]["to_version"]) if found else BASE

    def previous(self) -> str | None:
        """Return what was live before the present version first was, rolled-back ones skipped.

        None when the base model is live, before which there is nothing.
        """
        first_from: dict[str, str] = {}
        for move in self.moves():
            if move.kind == "promote":
                first_from.setdefault(move.to_version, move.from_version)
        version = self.live()
        while version != BASE:
            version = first_from.get(version, BASE)
            if version == BASE or self.get(version).status not in NO_WAY_BACK:
                return version
        return None

    def move_pointer(
        self, *, expected: str, to: str, kind: str, reason: str, actor: str, forced: bool = False
    ) -> None:
        """Make a version live and write down why; one transaction.

        Args:
            expected: what the caller believes is live.
            to: the version to become live, or "base".
            kind: "promote", or "rollback", which marks the version that is left as rolled back.
            reason: shown to people.
            actor: who decided.
            forced: it went live without a passing gate.

        Raises:
            ConflictError: something else has become live since, or the version may not become live.
        """

        def write(db: Transaction) -> None:
            found = list(db.query("SELECT to_version FROM pointer_moves ORDER BY id DESC LIMIT 1"))
            live = found[0]["to_version"] if found else BASE
            if live != expected:
                raise ConflictError(f"{live} has become live meanwhile, not {expected}")
            left = VersionStatus.ROLLED_BACK if kind == "rollback" else VersionStatus.RETIRED
            if any(db.query("SELECT 1 FROM version_taints WHERE version_id = ?", (live,))):
                left = VersionStatus.TAINTED
            if live != BASE:
                _set_status(db, live, left)
            if to != BASE:
                _set_status(db, to, VersionStatus.LIVE)
            row: dict[str, Any] = {"created_at": rows.encode_value(utc_now()), "kind": kind}
            row |= {"from_version": live, "to_version": to, "reason": reason, "actor": actor}
            rows.insert(db, "pointer_moves", row | {"forced": int(forced)})

        self._db.write(write)

    def taints(self) -> dict[str, dict[str, Any]]:
        """Return, by version, the erasure of what it had learned from."""
        return {row["version_id"]: row for row in self._db.read("SELECT * FROM version_taints")}

    def episodes_of(self, version_id: str) -> list[str]:
        """Return the ids of the episodes that taught a version."""
        sql = "SELECT episode_id FROM version_episodes WHERE version_id = ? ORDER BY episode_id"
        return [row["episode_id"] for row in self._db.read(sql, (version_id,))]

    def changed_outcomes(self, version_id: str) -> list[str]:
        """Return the episodes that taught a version and whose outcome is another one since."""
        sql = """SELECT v.episode_id FROM version_episodes v JOIN episodes e ON e.id = v.episode_id
            WHERE v.version_id = ? AND v.outcome_provenance IS NOT NULL
            AND v.outcome_value IS NOT e.outcome_value ORDER BY v.episode_id"""
        return [row["episode_id"] for row in self._db.read(sql, (version_id,))]


def _taint_if_erased(db: Transaction, version: AdapterVersion) -> None:
    """Taint a version whose episodes were erased while it was trained, or whose parent is tainted.

    Inside a write.
    """
    seen = next(
        db.query(
            """SELECT COUNT(*) AS num, MAX(erasure_id) AS erasure_id FROM erased_ids
                WHERE id IN (SELECT episode_id FROM version_episodes WHERE version_id = ?)""",
            (version.id,),
        )
    )
    sql = "SELECT erasure_id FROM version_taints WHERE version_id = ?"
    inherited = next(iter(db.query(sql, (version.parent,))), None)
    if not seen["num"] and inherited is None:
        return
    row = {"version_id": version.id, "created_at": rows.encode_value(utc_now())}
    row["erasure_id"] = seen["erasure_id"] or (inherited or {})["erasure_id"]
    row["inherited_from"] = None if inherited is None else version.parent
    rows.insert(db, "version_taints", row | {"num_episodes": seen["num"]})
    _set_status(db, version.id, VersionStatus.TAINTED)


def _set_status(db: Transaction, version_id: str, status: VersionStatus) -> None:
    found = list(db.query("SELECT status FROM adapter_versions WHERE id = ?", (version_id,)))
    if not found:
        raise NotFoundError(f"there is no adapter version {version_id!r}")
    present = VersionStatus(found[0]["status"])
    if status not in VERSION_TRANSITIONS[present]:
        raise ConflictError(f"{version_id} is {present}; it cannot become {status}")
    db.execute("UPDATE adapter_versions SET status = ? WHERE id = ?", (status, version_id))
