"""Finds recorded calls by what a later request knows of them.

It reads whole columns, never the tokens; what is not in the file yet it does not find.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from memory import rows
from memory.database import Database
from memory.errors import NotFoundError
from memory.types import GOES_ON, CallStatus

_GOES_ON = ", ".join(f"'{edge}'" for edge in sorted(GOES_ON))
RECORDED_COLUMNS = f"""id AS call_id, episode_id, parent_id, chain_key AS answer,
    system_key AS system, status, created_at, EXISTS (
        SELECT 1 FROM calls AS child WHERE child.parent_id = calls.id
        AND child.edge IN ({_GOES_ON})) AS is_continued"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A call that was found by one of its keys."""

    call_id: str
    episode_id: str
    parent_id: str | None
    answer: str | None
    system: str | None
    status: CallStatus
    created_at: datetime
    is_continued: bool


class CallFinder:
    """Looks among the calls of all tenants: a key holds whose it is."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def recorded(self, call_id: str) -> Recorded:
        """Return one call as those that are found by a key.

        Raises:
            NotFoundError: there is none of this id.
        """
        found = self._db.read(f"SELECT {RECORDED_COLUMNS} FROM calls WHERE id = ?", (call_id,))
        if not found:
            raise NotFoundError(f"there is no completion {call_id!r}", param="completion_id")
        return rows.decode(Recorded, found[0])

    def find_answered(self, keys: Sequence[str], *, limit: int) -> list[Recorded]:
        """Return the calls whose conversation up to the answer has one of the keys, newest first.

        No key, no query.
        """
        if not keys:
            return []
        marks = ", ".join("?" * len(keys))
        sql = f"""SELECT {RECORDED_COLUMNS} FROM calls WHERE chain_key IN ({marks})
            ORDER BY rowid DESC LIMIT ?"""
        return [rows.decode(Recorded, row) for row in self._db.read(sql, (*keys, limit))]

    def find_requested(self, key: str, *, limit: int) -> list[Recorded]:
        """Return the newest attempts at a request, newest first."""
        sql = f"""SELECT {RECORDED_COLUMNS} FROM calls WHERE request_key = ?
            ORDER BY rowid DESC LIMIT ?"""
        return [rows.decode(Recorded, row) for row in self._db.read(sql, (key, limit))]

    def newest_failure(self, limit: int) -> datetime | None:
        """Return when the last of the newest calls was asked that did not end well."""
        sql = """SELECT created_at FROM
            (SELECT status, created_at FROM calls ORDER BY rowid DESC LIMIT ?)
            WHERE status != 'ok' LIMIT 1"""
        found = self._db.read(sql, (limit,))
        return datetime.fromisoformat(found[0]["created_at"]) if found else None

    def newest_quotes(self, limit: int) -> list[dict[str, Any]]:
        """Return what may be quoted of the newest calls, oldest first, with whose they are."""
        sql = """SELECT calls.id, episode_id, calls.session, user, tenant, system_key, edge,
            calls.created_at, quotes FROM calls JOIN episodes ON episodes.id = episode_id
            WHERE calls.rowid IN (SELECT rowid FROM calls WHERE quotes IS NOT NULL
                ORDER BY rowid DESC LIMIT ?) ORDER BY calls.rowid"""
        return [row | {"quotes": rows.loads(row["quotes"])} for row in self._db.read(sql, (limit,))]

    def last_adapter(self, episode_id: str, *, asked_model: str) -> str | None:
        """Return what answered the episode's newest call of a model name; errors do not count."""
        sql = """SELECT adapter FROM calls WHERE episode_id = ? AND status != 'error'
            AND json_extract(request, '$.model') = ? ORDER BY rowid DESC LIMIT 1"""
        found = self._db.read(sql, (episode_id, asked_model))
        return str(found[0]["adapter"]) if found else None
