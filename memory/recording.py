"""The calls of answers on their way into the file: each stores what it adds to the one before.

What was erased meanwhile is left out here, since whoever answered could not know. It does not know
who waits for the commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from pydantic import TypeAdapter

from memory import call_rows, recalled_calls, rows
from memory.call_rows import NewestSaid, Said
from memory.database import Transaction
from memory.types import Call, Episode

CHAIN = """WITH RECURSIVE chain(id, base_id) AS (
        SELECT id, base_id FROM calls WHERE id = ?
        UNION SELECT calls.id, calls.base_id FROM chain JOIN calls ON calls.id = chain.base_id)
    SELECT calls.* FROM chain JOIN calls ON calls.id = chain.id ORDER BY calls.rowid"""
"""A call after all that it is based on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallKeys:
    """By what a later request finds a call; worked out by whoever records it."""

    answer: str | None = None  # of the conversation up to its answer: found by what continues it
    system: str | None = None
    request: str | None = None  # found by another attempt at the same request
    quotes: Sequence[Sequence[Any]] = ()  # texts that other conversations may quote, as hashes


@dataclass(frozen=True, slots=True)
class Answered:
    """The calls of one answer, one a choice, each with how later requests find it."""

    episode: Episode
    calls: Sequence[Call]
    keys: Sequence[CallKeys | None]


def spell(answered: Answered) -> bytes | None:
    """Return an answer's calls as JSON, for the journal; None where that cannot be.

    Numbers come back as they were; a log-probability that is not finite comes back as None.
    """
    try:
        return orjson.dumps(answered)
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return None


def read_spelled(entry: bytes) -> Answered:
    """Return what was spelled.

    Raises:
        ValueError: it is none of this version's.
    """
    return _adapter().validate_json(entry)


@cache
def _adapter() -> TypeAdapter[Answered]:
    return TypeAdapter(Answered)


class Recording:
    """Writes calls and their episodes; the writer's thread only."""

    def __init__(self) -> None:
        self._said = NewestSaid()

    def record(self, db: Transaction, answers: Sequence[Answered]) -> None:
        """Store calls and their episodes; a known episode is opened again. Runs inside a write."""
        if not (answers := _without_erased(db, answers)):
            return
        episodes = [rows.encode(answered.episode) for answered in answers]
        reopen = """ON CONFLICT (id) DO UPDATE SET revision = revision + 1,
            learn = MIN(learn, excluded.learn), withheld = CASE excluded.withheld
                WHEN 'control_tokens' THEN excluded.withheld
                ELSE COALESCE(withheld, excluded.withheld) END"""
        rows.insert_all(db, "episodes", episodes, reopen)
        calls, told = [], self._told(db, answers)
        for answered in answers:
            base_id = answered.calls[0].parent_id
            for answer, found_by in zip(answered.calls, answered.keys, strict=True):
                call = recalled_calls.without_erased(db, answer)
                base = None if base_id is None else told.get((answered.episode.id, base_id))
                row, said = call_rows.encode(call, base_id, base)
                told[answered.episode.id, call.id] = said
                base_id = answered.calls[0].id  # another choice repeats what the first was asked
                calls.append(row | _key_columns(found_by or CallKeys()))
        rows.insert_all(db, "calls", calls)
        for (_, call_id), said in told.items():
            self._said.put(call_id, said)

    def record_missing(self, db: Transaction, answers: Sequence[Answered]) -> int:
        """Store those of which nothing is in the file yet; return how many. Runs inside a write."""
        missing = [one for one in answers if not _is_there(db, one)]
        for answered in missing:  # one by one: each may be based on the one before
            self.record(db, [answered])
        return len(missing)

    def forget_newest(self) -> None:
        """Compare the next calls with the file: what stands there was changed. Inside a write."""
        self._said = NewestSaid()

    def _told(self, db: Transaction, answers: Sequence[Answered]) -> dict[tuple[str, str], Said]:
        """Return what the parents said that stand in the file, by their episode and id."""
        parents = {one.calls[0].parent_id for one in answers} - {None}
        if not parents:
            return {}
        marks = ", ".join("?" * len(parents))
        found = db.query(f"SELECT episode_id, id FROM calls WHERE id IN ({marks})", (*parents,))
        return {(row["episode_id"], row["id"]): self._said_by(db, row["id"]) for row in found}

    def _said_by(self, db: Transaction, call_id: str) -> Said:
        known = self._said.get(call_id)
        return known or call_rows.newest_said(list(db.query(CHAIN, (call_id,))))


def _is_there(db: Transaction, answered: Answered) -> bool:
    sql = "SELECT 1 FROM calls WHERE id = ?"
    return db.execute(sql, (answered.calls[0].id,)).fetchone() is not None


def _without_erased(db: Transaction, answers: Sequence[Answered]) -> Sequence[Answered]:
    """Leave out what was on its way when it was erased: an episode, or practice with it."""
    episodes = [answered.episode for answered in answers]
    ids = {one.id for one in episodes} | {one.task_id for one in episodes if one.task_id}
    marks = ", ".join("?" * len(ids))
    found = db.execute(f"SELECT id FROM erased_ids WHERE id IN ({marks})", (*ids,)).fetchall()
    if not found:
        return answers
    erased = {row[0] for row in found}
    for episode in episodes:
        if episode.task_id in erased and episode.id not in erased:
            cursor = db.execute(
                """INSERT INTO erased_ids (id, erasure_id)
                    SELECT ?1, erasure_id FROM erased_ids WHERE id = ?2
                        AND NOT EXISTS (SELECT 1 FROM tasks WHERE id = ?2)""",
                (episode.id, episode.task_id),
            )
            erased |= {episode.id} if cursor.rowcount else set()
    return [answered for answered in answers if answered.episode.id not in erased]


def _key_columns(keys: CallKeys) -> dict[str, Any]:
    return {
        "chain_key": keys.answer,
        "system_key": keys.system,
        "request_key": keys.request,
        "quotes": rows.encode_value(list(keys.quotes)) if keys.quotes else None,
    }
