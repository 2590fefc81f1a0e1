"""Rows of episodes, calls, feedback and grades: the record of what was asked and answered."""

import asyncio
import copy
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from memory import call_rows, rows
from memory.call_finder import CallFinder
from memory.database import Database, Transaction
from memory.errors import NotFoundError, StoreError
from memory.grade_rows import outcome_of, reopen
from memory.group_write import GroupWrite, Kept
from memory.journal import Journal
from memory.recording import CHAIN, Answered, CallKeys, Recording, read_spelled, spell
from memory.tenants import EVERYTHING, Sight
from memory.types import (
    Call,
    Episode,
    Feedback,
    Grade,
    Outcome,
)

log = logging.getLogger(__name__)
OUTCOME_COLUMNS = "outcome_value, outcome_provenance, outcome_num_grades, outcome_unscored_reason"
LIST_COLUMNS = f"""id, created_at, source, task_text, task_key, skill_id AS skill, session,
    tenant, withheld, cycle_id, {OUTCOME_COLUMNS},
    (SELECT COUNT(*) FROM calls WHERE episode_id = episodes.id) AS num_calls,
    (SELECT adapter FROM calls WHERE episode_id = episodes.id
        ORDER BY rowid DESC LIMIT 1) AS adapter"""


class EpisodeStore:
    """Reads and writes episodes and all that hangs on them."""

    def __init__(
        self, database: Database, recording: Recording, journal: Journal | None = None
    ) -> None:
        """Take up what the journal holds.

        Args:
            database: where the rows are.
            recording: writes calls into them.
            journal: keeps answers until they are in the file; None: who records waits for that.
        """
        self._db = database
        self._recording = recording
        self.incoming = GroupWrite(database, self._recording.record, journal=journal, spell=spell)
        self.finder = CallFinder(database)
        self._sight = EVERYTHING
        if journal is not None:
            self._take_up(journal)

    def _take_up(self, journal: Journal) -> None:
        """Record what another process could not any more."""
        left = journal.left()
        try:
            answers = [read_spelled(entry) for entry in left]
        except ValueError as error:
            raise StoreError(
                f"answers of another version of Denizen wait beside {self._db.path}: start that "
                f"version once, so that it records them ({error})"
            ) from error
        if answers:
            num = self._db.write(lambda db: self._recording.record_missing(db, answers))
            log.warning("%d answers are recorded that were not when the service died", num)
        journal.clear()

    def seen_by(self, sight: Sight) -> "EpisodeStore":
        """Return the same store as a caller sees it: what is out of sight is not found."""
        view = copy.copy(self)
        view._sight = sight
        return view

    @property
    def _in_sight(self) -> str:
        """What narrows a query over rows with an ``episode_id``, as SQL."""
        if self._sight.is_everything:
            return "TRUE"
        return f"""EXISTS (SELECT 1 FROM episodes AS seen
            WHERE seen.id = episode_id AND seen.{self._sight.clause})"""

    def keep(
        self, episode: Episode, calls: Sequence[Call], keys: Sequence[CallKeys | None]
    ) -> Kept:
        """Store the calls of one answer, and their episode where it is new.

        Args:
            episode: stored if its id is new; else it is opened again for grading.
            calls: one a choice.
            keys: for each call, how later requests find it; None: they do not.
        """
        return self.incoming.add(Answered(episode, calls, keys))

    def record(
        self, episode: Episode, calls: Sequence[Call], keys: Sequence[CallKeys | None]
    ) -> "asyncio.Future[None]":
        """Do the same; the future is done after the commit."""
        return self.keep(episode, calls, keys).written

    def forget_newest(self) -> None:
        """Compare the next calls with the file: what stands there was changed. Inside a write."""
        self._recording.forget_newest()

    def get(self, episode_id: str) -> Episode:
        """Return one episode.

        Raises:
            NotFoundError: there is none of this id.
        """
        return rows.decode(Episode, self._row(episode_id))

    def _row(self, episode_id: str) -> dict[str, Any]:
        sql = f"SELECT * FROM episodes WHERE id = ? AND {self._sight.clause}"
        found = self._db.read(sql, (episode_id,))
        if not found:
            raise NotFoundError(f"there is no episode {episode_id!r}", param="episode_id")
        return found[0]

    def outcome(self, episode_id: str) -> Outcome | None:
        """Return the merged grades, or None while the episode has not been graded."""
        return outcome_of(self._row(episode_id))

    def episode_of_call(self, call_id: str) -> str:
        """Return the episode that holds a call.

        Raises:
            NotFoundError: there is no such call.
        """
        sql = f"SELECT episode_id FROM calls WHERE id = ? AND {self._in_sight}"
        found = self._db.read(sql, (call_id,))
        if not found:
            raise NotFoundError(f"there is no completion {call_id!r}", param="completion_id")
        return str(found[0]["episode_id"])

    def call(self, call_id: str) -> Call:
        """Return one call.

        Raises:
            NotFoundError: there is none of this id.
        """
        self.episode_of_call(call_id)
        return call_rows.decode_newest(self._db.read(CHAIN, (call_id,)))

    def recalled(self, call_id: str) -> dict[str, Any] | None:
        """Return what memory put into a call's prompt; None also where there is no such call."""
        for row in self._db.read("SELECT recalled FROM calls WHERE id = ?", (call_id,)):
            return None if row["recalled"] is None else dict(rows.loads(row["recalled"]))
        return None

    def session_episode(self, session: str, *, user: str | None = None) -> str | None:
        """Return the newest episode of a named session; with a user, the newest of theirs."""
        sql = f"""SELECT id FROM episodes WHERE session = ?1 AND user IS COALESCE(?2, user)
            AND {self._sight.clause} ORDER BY id DESC LIMIT 1"""
        found = self._db.read(sql, (session, user))
        return str(found[0]["id"]) if found else None

    def calls(self, episode_id: str, *, limit: int | None = None) -> list[Call]:
        """Return the episode's calls, oldest first; with a limit, the oldest of them."""
        sql = f"""SELECT * FROM calls WHERE episode_id = ? AND {self._in_sight}
            ORDER BY rowid LIMIT ?"""
        most = -1 if limit is None else limit  # SQLite's word for "all"
        return list(call_rows.decode(self._db.read(sql, (episode_id, most))))

    def call_texts(self, episode_id: str, *, limit: int | None = None) -> list[Call]:
        """Return the same calls without their tokens, which are None.

        Each prompt of a conversation holds all that was said before: the tokens of 400 turns take
        seconds to decode, and a gigabyte.
        """
        sql = f"""SELECT {call_rows.TEXT_COLUMNS}, base_id, shared FROM calls
            WHERE episode_id = ? AND {self._in_sight} ORDER BY rowid LIMIT ?"""
        most = -1 if limit is None else limit
        return list(call_rows.decode_texts(self._db.read(sql, (episode_id, most))))

    def answers(self, episode_id: str) -> list[dict[str, Any]]:
        """Return id, status, learn and message of each call that has a message, newest first."""
        sql = f"""SELECT id, status, learn, message FROM calls WHERE episode_id = ?
            AND message IS NOT NULL AND {self._in_sight} ORDER BY rowid DESC"""
        found = self._db.read(sql, (episode_id,))
        return [row | {"message": rows.loads(row["message"])} for row in found]

    def newest_live(self, limit: int) -> list[dict[str, Any]]:
        """Return id, revision and number of calls of the newest episodes; never practice."""
        sql = """SELECT id, revision,
            (SELECT COUNT(*) FROM calls WHERE episode_id = episodes.id) AS num_calls
            FROM episodes WHERE source != 'practice' ORDER BY id DESC LIMIT ?"""
        return self._db.read(sql, (limit,))

    def feedback(self, episode_id: str) -> list[Feedback]:
        """Return what people said, oldest first."""
        sql = f"SELECT * FROM feedback WHERE episode_id = ? AND {self._in_sight} ORDER BY rowid"
        return [rows.decode(Feedback, row) for row in self._db.read(sql, (episode_id,))]

    def grades(self, episode_id: str) -> list[Grade]:
        """Return the grades in force."""
        sql = f"""SELECT * FROM grades WHERE episode_id = ? AND superseded_at IS NULL
            AND {self._in_sight} ORDER BY id"""
        return [rows.decode(Grade, row) for row in self._db.read(sql, (episode_id,))]

    def past_grades(self, episode_id: str) -> list[dict[str, Any]]:
        """Return the grades that others have taken the place of, oldest first, with their times."""
        sql = f"""SELECT * FROM grades WHERE episode_id = ? AND superseded_at IS NOT NULL
            AND {self._in_sight} ORDER BY id"""
        return [
            {name: row[name] for name in ("created_at", "superseded_at")}
            | {"grade": rows.decode(Grade, row)}
            for row in self._db.read(sql, (episode_id,))
        ]

    def trained_on(self, episode_id: str) -> list[dict[str, Any]]:
        """Return the versions that an episode taught, with its outcome then, and whether it holds.

        ``outcome_changed`` is None where the outcome was not noted.
        """
        sql = f"""SELECT version_id AS version, v.outcome_value, v.outcome_provenance,
            CASE WHEN v.outcome_provenance IS NOT NULL
                THEN v.outcome_value IS NOT episodes.outcome_value END AS outcome_changed
            FROM version_episodes v JOIN episodes ON episodes.id = v.episode_id
            WHERE v.episode_id = ? AND {self._sight.clause} ORDER BY version_id"""
        return [
            row | {"outcome_changed": _as_bool(row["outcome_changed"])}
            for row in self._db.read(sql, (episode_id,))
        ]

    async def add_feedback(self, feedback: Feedback) -> Feedback:
        """Append what a person said and open the episode for grading again.

        Returns:
            What is in force: this, or the source's last word on the same target where this only
            repeats it; then nothing is written.
        """

        def write(db: Transaction) -> Feedback:
            sql = """SELECT * FROM feedback WHERE episode_id = ? AND call_id IS ? AND source = ?
                ORDER BY rowid DESC LIMIT 1"""
            target = (feedback.episode_id, feedback.call_id, feedback.source)
            for row in db.query(sql, target):
                last = rows.decode(Feedback, row)
                if feedback.repeats(last):
                    return last
            rows.insert(db, "feedback", rows.encode(feedback))
            reopen(db, feedback.episode_id)
            return feedback

        return await self._db.write_async(write)

    def undigested(self, limit: int) -> list[Episode]:
        """Return episodes that wait for grades and outcome, oldest first; never practice."""
        sql = "SELECT * FROM episodes WHERE digested_revision < revision ORDER BY id LIMIT ?"
        return [rows.decode(Episode, row) for row in self._db.read(sql, (limit,))]

    def unsorted(self, since: str, limit: int) -> list[Episode]:
        """Return episodes from the id ``since`` on that no skill has been looked for, oldest first.

        Never practice. One that waits for a skill has a vector, or the reason why it has none.
        """
        sql = """SELECT * FROM episodes WHERE id >= ? AND skill_id IS NULL AND source != 'practice'
            AND NOT EXISTS (SELECT 1 FROM vectors WHERE episode_id = episodes.id)
            ORDER BY id LIMIT ?"""
        return [rows.decode(Episode, row) for row in self._db.read(sql, (since, limit))]

    def page(
        self,
        *,
        limit: int,
        after: str | None = None,
        skill: int | None = None,
        source: str | None = None,
        session: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return rows for a list, newest first, that come after the id ``after``."""
        wanted = {"id < ?": after, "skill_id = ?": skill, "source = ?": source}
        wanted["session = ?"] = session
        given = {clause: value for clause, value in wanted.items() if value is not None}
        where = " AND ".join([*given, self._sight.clause])
        sql = f"SELECT {LIST_COLUMNS} FROM episodes WHERE {where} ORDER BY id DESC LIMIT ?"
        found = self._db.read(sql, (*given.values(), limit))
        return [_with_outcome(row) for row in found]

    def ids_after(
        self, after: str, *, since: datetime | None, session: str | None, limit: int
    ) -> list[str]:
        """Return the ids of episodes that come after an id, in the order of ids."""
        wanted = {"created_at >= ?": rows.encode_value(since), "session = ?": session}
        given = {clause: value for clause, value in wanted.items() if value is not None}
        where = " AND ".join(["id > ?", *given, self._sight.clause])
        sql = f"SELECT id FROM episodes WHERE {where} ORDER BY id LIMIT ?"
        return [str(row["id"]) for row in self._db.read(sql, (after, *given.values(), limit))]

    def counts(self) -> dict[str, int]:
        """Return how many episodes, calls and graded episodes there are; practice apart."""
        theirs, seen = self._in_sight, self._sight.clause
        sql = f"""SELECT
            (SELECT COUNT(*) FROM episodes WHERE source != 'practice' AND {seen}) AS episodes,
            (SELECT COUNT(*) FROM episodes WHERE source = 'practice' AND {seen})
                AS practice_episodes,
            (SELECT COUNT(*) FROM calls WHERE {theirs}) AS calls,
            (SELECT COUNT(*) FROM episodes WHERE source != 'practice'
                AND outcome_value IS NOT NULL AND {seen}) AS graded,
            (SELECT COUNT(*) FROM feedback WHERE {theirs}) AS feedback"""
        return self._db.read(sql)[0]


def _as_bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _with_outcome(row: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in row.items() if not name.startswith("outcome_")}
    return plain | {"outcome": outcome_of(row)}
