"""Rows of graded practice: the tries of a stage of a learning cycle, and of tasks run alone.

Their episodes are rows like all others; what stands here is which belong together and in what
order, so that a cycle that is gone on with finds what it has sampled. It does not know how a task
is tried or graded.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from memory import call_rows, rows
from memory.database import Database, Transaction
from memory.grade_rows import outcome_of, set_grades
from memory.recording import Answered, Recording
from memory.task_store import note_practice
from memory.types import Call, CycleStage, Episode, Grade, Outcome

Practised: TypeAlias = tuple[Episode, Call, Grade, Outcome]
"""One try at a task, graded."""


class PracticeStore:
    """Reads and writes practice."""

    def __init__(self, database: Database, recording: Recording) -> None:
        self._db = database
        self._recording = recording

    async def record(
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

    def of_stage(self, stage: CycleStage) -> list[list[Practised]]:
        """Return what ``record`` stored for a stage, as it stands now; empty if nothing.

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
