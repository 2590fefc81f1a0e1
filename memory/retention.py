"""Lets old episodes go, by age and by the size of the database; by default none.

Whole episodes go, with their calls, grades, feedback, vectors, and the tasks made from them. What
was learned from them stays, and so do the ids by which a version names what taught it: a limit of
time or room is no objection to what was learned (that is an erasure, which taints). It does not
know when it is run.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from memory import rows
from memory.database import Database, MemoryConfig, Transaction
from memory.types import utc_now

log = logging.getLogger(__name__)
BATCH = 100  # episodes in one write, so that records do not wait long behind it
HANGING = ("feedback", "grades", "judge_probes", "vectors", "cycle_episodes", "calls")
_IS_AT_REST = """digested_revision >= revision
    AND NOT EXISTS (SELECT 1 FROM cycles WHERE cycles.id = cycle_id AND state = 'running')
    AND NOT EXISTS (SELECT 1 FROM episodes AS trial JOIN cycles ON cycles.id = trial.cycle_id
        WHERE trial.task_id = episodes.id AND cycles.state = 'running')
    AND NOT EXISTS (SELECT 1 FROM tasks JOIN cycles ON cycles.state = 'running'
        WHERE origin = 'episode:' || episodes.id AND (
            EXISTS (SELECT 1 FROM episodes AS trial
                WHERE trial.task_id = tasks.id AND trial.cycle_id = cycles.id)
            OR EXISTS (SELECT 1 FROM cycle_skills JOIN skills ON skills.id = cycle_skills.skill_id
                WHERE cycle_skills.cycle_id = cycles.id
                AND tasks.skill_id IN (skills.id, skills.merged_into))))"""
"""Digested, and a running cycle uses neither the episode, nor a prefix of it, nor a task that was
made from it."""
_IS_NEEDED = """(EXISTS (SELECT 1 FROM feedback WHERE episode_id = episodes.id)
    OR EXISTS (SELECT 1 FROM tasks WHERE origin = 'episode:' || episodes.id))"""
_IS_OLD = """created_at < ?1
    AND NOT EXISTS (SELECT 1 FROM calls WHERE episode_id = episodes.id AND created_at >= ?1)
    AND NOT EXISTS (SELECT 1 FROM feedback WHERE episode_id = episodes.id AND created_at >= ?1)"""
FIRST_TO_GO = (
    "source = 'practice'",
    f"source != 'practice' AND NOT {_IS_NEEDED}",
    "source != 'practice'",
)
"""Where room is short: practice can be had again; what people said, and what made a task, last."""


class Retention:
    """Keeps the record within its limits.

    Args:
        database: where the record is.
        config: the limits.
        forget: take episodes out of what is held in memory; called on the event loop, where any
            went.
    """

    def __init__(
        self,
        database: Database,
        config: MemoryConfig,
        *,
        forget: Sequence[Callable[[Collection[str]], None]] = (),
    ) -> None:
        self._db = database
        self._config = config
        self._forget = forget

    async def run(self) -> None:
        """Let go what is past a limit, behind the answers."""
        gone: list[str] = []
        try:
            await asyncio.to_thread(self._enforce, gone)
        finally:  # whatever came in between: these are gone
            if gone:
                for forget in self._forget:
                    forget(gone)

    def enforce(self) -> list[str]:
        """Let go what is past a limit; return the episodes that went. For threads."""
        gone: list[str] = []
        self._enforce(gone)
        return gone

    def _enforce(self, gone: list[str]) -> None:
        """Let go what is past a limit, and put it into the list as it goes."""
        for episode_id in self._past_limits():
            gone.append(episode_id)
        if gone:
            log.info("let %d episodes go, which were past a limit of [memory]", len(gone))

    def _past_limits(self) -> Iterator[str]:
        """Yield what went."""
        config, now = self._config, utc_now()
        if config.keep_practice_days is not None:
            before = now - timedelta(days=config.keep_practice_days)
            yield from self._let_go_before(before, "source = 'practice'")
        if config.keep_days is not None:
            yield from self._let_go_before(now - timedelta(days=config.keep_days), "TRUE")
        if config.max_gib is not None:
            yield from self._let_go_down_to(int(config.max_gib * 2**30))

    def used_bytes(self) -> int:
        """Return how much of the database file holds something."""
        [found] = self._db.read(
            """SELECT (page_count - freelist_count) * page_size AS used FROM
                pragma_page_count(), pragma_freelist_count(), pragma_page_size()"""
        )
        return int(found["used"])

    def _let_go_before(self, instant: datetime, which: str) -> Iterator[str]:
        for gone in self._batches(f"{which} AND {_IS_OLD}", (rows.encode_value(instant),)):
            yield from gone

    def _let_go_down_to(self, max_bytes: int) -> Iterator[str]:
        for which in FIRST_TO_GO:
            if self.used_bytes() <= max_bytes:
                break
            for gone in self._batches(which, ()):
                yield from gone
                if self.used_bytes() <= max_bytes:
                    break

    def _batches(self, where: str, values: tuple[Any, ...]) -> Iterator[list[str]]:
        """Let go the oldest of which the condition is true, some at a time; yield what went."""
        where = f"{where} AND {_IS_AT_REST}"
        sql = f"SELECT id FROM episodes WHERE {where} ORDER BY id LIMIT {BATCH}"
        while found := self._db.read(sql, values):
            yield self._let_go([row["id"] for row in found], where, values)

    def _let_go(self, ids: Sequence[str], where: str, values: tuple[Any, ...]) -> list[str]:
        """Delete those of the episodes of which the condition is true when it comes to it."""
        marks = ", ".join("?" * len(ids))
        sql = f"SELECT id FROM episodes WHERE {where} AND id IN ({marks})"

        def write(db: Transaction) -> list[str]:
            still = [str(row["id"]) for row in db.query(sql, (*values, *ids))]
            return delete_episodes(db, still)

        return self._db.write(write)


def delete_episodes(db: Transaction, ids: Sequence[str]) -> list[str]:
    """Delete episodes and all that hangs on them; inside a write.

    Returns:
        The ids that are gone: theirs, and those of the practice at their prefixes and on tasks that
        were made from them.
    """
    marks = ", ".join("?" * len(ids))
    origins = tuple(f"episode:{id}" for id in ids)
    practice = db.query(
        f"""SELECT id FROM episodes WHERE source = 'practice' AND (task_id IN ({marks})
            OR task_id IN (SELECT id FROM tasks WHERE origin IN ({marks})))""",
        (*ids, *origins),
    )
    gone = list(dict.fromkeys([*ids, *(str(row["id"]) for row in practice)]))
    for table in HANGING:
        db.conn.executemany(f"DELETE FROM {table} WHERE episode_id = ?", [(id,) for id in gone])
    db.execute(f"DELETE FROM tasks WHERE origin IN ({marks})", origins)
    db.conn.executemany("DELETE FROM episodes WHERE id = ?", [(id,) for id in gone])
    return gone
