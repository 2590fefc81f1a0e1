"""Which answers wait for a judge, so that a restart forgets none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from memory import rows
from memory.database import Database, Transaction
from memory.types import utc_now

PATIENCE_S = 60.0
"""How long an answer waits for its skill to be looked for, which may have a rubric of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiting:
    """One answer that waits.

    Example:
        ``Waiting(episode_id="ep_0193-5c", call_id="chatcmpl-8c1", num_tries=0, due_at=…)``
    """

    episode_id: str
    call_id: str
    num_tries: int  # how often a judge failed at it
    due_at: datetime  # not to be tried before


class JudgeQueue:
    """Reads who waits."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def due(self, limit: int) -> list[Waiting]:
        """Return those whose time has come, in the order of their time.

        One whose skill has not been looked for yet comes later.
        """
        sql = """SELECT * FROM judge_queue WHERE due_at <= ?1 AND (due_at <= ?2
                OR EXISTS (SELECT 1 FROM vectors v WHERE v.episode_id = judge_queue.episode_id)
                OR EXISTS (SELECT 1 FROM episodes e
                    WHERE e.id = judge_queue.episode_id AND e.skill_id IS NOT NULL))
            ORDER BY due_at, episode_id LIMIT ?3"""
        now = utc_now()
        patient = now - timedelta(seconds=PATIENCE_S)
        times = (rows.encode_value(now), rows.encode_value(patient))
        return [rows.decode(Waiting, row) for row in self._db.read(sql, (*times, limit))]

    def num_waiting(self) -> int:
        """Return how many wait, those whose time has not come included."""
        return int(self._db.read("SELECT COUNT(*) AS n FROM judge_queue")[0]["n"])

    def num_graded_waiting(self) -> int:
        """Return how many wait whose answer a check or a person has graded already."""
        sql = """SELECT COUNT(*) AS n FROM judge_queue q WHERE EXISTS (
            SELECT 1 FROM grades g WHERE g.episode_id = q.episode_id AND superseded_at IS NULL
            AND kind IN ('check', 'person') AND value IS NOT NULL)"""
        return int(self._db.read(sql)[0]["n"])

    async def add(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Let answers wait, each an episode and a call; see ``wish``."""

        def write(db: Transaction) -> None:
            for episode_id, call_id in wanted:
                wish(db, episode_id, call_id)

        if wanted:
            await self._db.write_async(write)


def wish(db: Transaction, episode_id: str, call_id: str | None) -> None:
    """Let an answer wait for a judge, unless one has judged it, or it went; inside a write.

    Args:
        db: the connection inside the write.
        episode_id: the episode; one answer of it waits at most.
        call_id: the answer; None: no judge is wanted any more.
    """
    if call_id is None:
        db.execute("DELETE FROM judge_queue WHERE episode_id = ?", (episode_id,))
        return
    db.execute(
        """INSERT INTO judge_queue (episode_id, call_id, num_tries, due_at)
            SELECT ?1, ?2, 0, ?3 WHERE EXISTS (SELECT 1 FROM episodes WHERE id = ?1)
            AND NOT EXISTS (
                SELECT 1 FROM grades WHERE episode_id = ?1 AND kind = 'judge'
                AND superseded_at IS NULL AND json_extract(evidence, '$.call_id') = ?2)
            ON CONFLICT (episode_id) DO UPDATE SET call_id = ?2, num_tries = 0, due_at = ?3
                WHERE call_id != ?2""",
        (episode_id, call_id, rows.encode_value(utc_now())),
    )


def done(db: Transaction, waiting: Waiting) -> None:
    """Take an answer out, unless another of its episode has taken its place; inside a write."""
    sql = "DELETE FROM judge_queue WHERE episode_id = ? AND call_id = ?"
    db.execute(sql, (waiting.episode_id, waiting.call_id))


def postpone(db: Transaction, waiting: Waiting, seconds: float) -> None:
    """Count a failure and let the answer wait on; inside a write."""
    due_at = rows.encode_value(utc_now() + timedelta(seconds=seconds))
    db.execute(
        """UPDATE judge_queue SET num_tries = num_tries + 1, due_at = ?
            WHERE episode_id = ? AND call_id = ?""",
        (due_at, waiting.episode_id, waiting.call_id),
    )
