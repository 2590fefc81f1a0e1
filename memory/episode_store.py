"""Rows of episodes, calls, feedback and grades: the record of what was asked and answered."""

import asyncio
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from memory import call_rows, rows
from memory.database import Database, Transaction
from memory.errors import NotFoundError
from memory.group_write import GroupWrite
from memory.recording import CHAIN, Answered, CallKeys, Recording
from memory.task_store import note_practice
from memory.tenants import EVERYTHING, Sight
from memory.types import (
    Call,
    CallStatus,
    CycleStage,
    Episode,
    Feedback,
    Grade,
    GradeKind,
    Outcome,
    utc_now,
)

RECORDED_COLUMNS = """id AS call_id, episode_id, parent_id, chain_key AS answer,
    system_key AS system, status, created_at, EXISTS (
        SELECT 1 FROM calls AS child WHERE child.parent_id = calls.id
        AND child.edge IN ('continuation', 'rerendered', 'fork', 'compaction')) AS is_continued"""
OUTCOME_COLUMNS = "outcome_value, outcome_provenance, outcome_num_grades, outcome_unscored_reason"
LIST_COLUMNS = f"""id, created_at, source, task_text, task_key, skill_id AS skill, session,
    tenant, withheld, cycle_id, {OUTCOME_COLUMNS},
    (SELECT COUNT(*) FROM calls WHERE episode_id = episodes.id) AS num_calls,
    (SELECT adapter FROM calls WHERE episode_id = episodes.id
        ORDER BY rowid DESC LIMIT 1) AS adapter"""


Practised: TypeAlias = tuple[Episode, Call, Grade, Outcome]
"""One try at a task, graded."""


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


class EpisodeStore:
    """Reads and writes episodes and all that hangs on them."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._recording = Recording()
        self._answers = GroupWrite(database, self._recording.record)
        self._sight = EVERYTHING

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

    def record(
        self, episode: Episode, calls: Sequence[Call], keys: Sequence[CallKeys | None]
    ) -> "asyncio.Future[None]":
        """Store the calls of one answer, and their episode where it is new.

        Args:
            episode: stored if its id is new; else it is opened again for grading.
            calls: one a choice.
            keys: for each call, how later requests find it; None: they do not.

        Returns:
            Done after the commit. It fails with ``StoreError`` where the record cannot be written,
            and with ``UnavailableError`` where too many writes wait.
        """
        return self._answers.add(Answered(episode, calls, keys))

    async def record_practice(
        self,
        tried: Sequence[Sequence[Practised]],
        *,
        stage: CycleStage | None = None,
        mean_rewards: Mapping[str, float | None] | None = None,
    ) -> None:
        """Store graded practice, all of it or nothing; returns when committed.

        Args:
            tried: the tries of each task; each has an episode, a call and a grade.
            stage: where in a cycle they belong; None: in none.
            mean_rewards: the tasks that count as practised, and how that went (None: unscored).
        """

        def write(db: Transaction) -> None:
            for group_index, trials in enumerate(tried):
                for place, (episode, call, grade, outcome) in enumerate(trials):
                    self._recording.record(db, [Answered(episode, [call], [None])])
                    set_grades(db, episode, [grade], outcome)
                    if stage is not None:
                        at: dict[str, Any] = {"cycle_id": stage.cycle_id, "stage": stage.name}
                        at |= {"group_index": group_index, "place": place}
                        rows.insert(db, "cycle_episodes", at | {"episode_id": episode.id})
            note_practice(db, mean_rewards or {})

        await self._db.write_async(write)

    def practised(self, stage: CycleStage) -> list[list[Practised]]:
        """Return what ``record_practice`` stored for a stage, as it stands now; empty if nothing.

        A task that yielded no tries has an empty list, or none after the last that did.
        """
        sql = """WITH own AS (SELECT * FROM cycle_episodes
                WHERE cycle_id = ? AND stage = ? AND group_index IS NOT NULL)
            SELECT {columns} FROM own JOIN {table} ON {table}.{key} = own.episode_id
            ORDER BY group_index, place"""
        values = (stage.cycle_id, stage.name)
        columns = "own.group_index, episodes.*"
        found = self._db.read(sql.format(columns=columns, table="episodes", key="id"), values)
        told = sql.format(columns="{0}.*", table="{0}", key="episode_id")
        calls = {
            call.episode_id: call
            for call in call_rows.decode(self._db.read(told.format("calls"), values))
        }
        grades = {
            row["episode_id"]: rows.decode(Grade, row)
            for row in self._db.read(told.format("grades"), values)
            if row["superseded_at"] is None
        }
        tried: list[list[Practised]] = []
        for row in found:
            outcome, id = outcome_of(row), row["id"]
            if outcome is None or id not in calls or id not in grades:
                continue  # erased between two of the reads
            tried += [[] for _ in range(len(tried), row["group_index"] + 1)]
            tried[-1].append((rows.decode(Episode, row), calls[id], grades[id], outcome))
        return tried

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

    def session_episode(self, session: str, *, user: str | None = None) -> str | None:
        """Return the newest episode of a named session; with a user, the newest of theirs."""
        sql = f"""SELECT id FROM episodes WHERE session = ?1 AND user IS COALESCE(?2, user)
            AND {self._sight.clause} ORDER BY id DESC LIMIT 1"""
        found = self._db.read(sql, (session, user))
        return str(found[0]["id"]) if found else None

    def last_adapter(self, episode_id: str, *, asked_model: str) -> str | None:
        """Return what answered the episode's newest call of a model name; errors do not count."""
        sql = """SELECT adapter FROM calls WHERE episode_id = ? AND status != 'error'
            AND json_extract(request, '$.model') = ? ORDER BY rowid DESC LIMIT 1"""
        found = self._db.read(sql, (episode_id, asked_model))
        return str(found[0]["adapter"]) if found else None

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
            _reopen(db, feedback.episode_id)
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


def set_grades(
    db: Transaction, episode: Episode, grades: Sequence[Grade], outcome: Outcome
) -> None:
    """Put grades and the outcome in force; runs inside a write. Old grades stay as history.

    A grade that says what one in force says is left as it stands, so that the history holds changes
    only. A judge's grade stays in force, whether it is among these or not, until the judge has
    another. The episode counts as digested up to the revision that was read; what came since keeps
    it open.
    """
    now = rows.encode_value(utc_now())
    new = [rows.encode(grade) for grade in grades]
    sql = "SELECT * FROM grades WHERE episode_id = ? AND superseded_at IS NULL"
    for row in list(db.query(sql, (episode.id,))):
        same = next((one for one in new if one.items() <= row.items()), None)
        if same is not None:
            new.remove(same)
        elif row["kind"] != GradeKind.JUDGE:
            db.execute("UPDATE grades SET superseded_at = ? WHERE id = ?", (now, row["id"]))
    for one in new:
        rows.insert(db, "grades", one | {"episode_id": episode.id, "created_at": now})
    values = (outcome.value, outcome.provenance, outcome.num_grades, outcome.unscored_reason)
    db.execute(
        """UPDATE episodes SET outcome_value = ?, outcome_provenance = ?, outcome_num_grades = ?,
            outcome_unscored_reason = ?, digested_revision = ? WHERE id = ?""",
        (*values, episode.revision, episode.id),
    )


def set_judged(db: Transaction, episode_id: str, grade: Grade) -> None:
    """Put a judge's grade in the place of its earlier one, and open the episode for merging again.

    Runs inside a write. An episode that went meanwhile is left alone.
    """
    if not list(db.query("SELECT 1 FROM episodes WHERE id = ?", (episode_id,))):
        return
    now = rows.encode_value(utc_now())
    db.execute(
        """UPDATE grades SET superseded_at = ? WHERE episode_id = ? AND superseded_at IS NULL
            AND kind = ? AND grader = ?""",
        (now, episode_id, grade.kind, grade.grader),
    )
    _insert_grade(db, episode_id, grade, now)
    _reopen(db, episode_id)


def retire_judged(db: Transaction, episode_id: str, call_id: str) -> None:
    """Supersede what judges said of other answers than the last one; inside a write."""
    db.execute(
        """UPDATE grades SET superseded_at = ? WHERE episode_id = ? AND superseded_at IS NULL
            AND kind = 'judge' AND json_extract(evidence, '$.call_id') != ?""",
        (rows.encode_value(utc_now()), episode_id, call_id),
    )


def _insert_grade(db: Transaction, episode_id: str, grade: Grade, now: str) -> None:
    row = rows.encode(grade) | {"episode_id": episode_id, "created_at": now}
    rows.insert(db, "grades", row)


def _reopen(db: Transaction, episode_id: str) -> None:
    db.execute("UPDATE episodes SET revision = revision + 1 WHERE id = ?", (episode_id,))


def outcome_of(row: dict[str, Any]) -> Outcome | None:
    """Read the outcome columns of an episode's row; None while nothing has been graded."""
    if row["outcome_num_grades"] is None:
        return None
    provenance = row["outcome_provenance"]
    return Outcome(
        value=row["outcome_value"],
        provenance=None if provenance is None else GradeKind(provenance),
        num_grades=row["outcome_num_grades"],
        unscored_reason=row["outcome_unscored_reason"],
    )


def _as_bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _with_outcome(row: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in row.items() if not name.startswith("outcome_")}
    return plain | {"outcome": outcome_of(row)}
