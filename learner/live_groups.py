"""Live groups: recorded episodes of work that cannot be tried again, one rollout a task.

Their recorded tokens are trained with the advantage that ``live_record`` gives them. It does not
know how episodes are graded or rows trained.
"""

import asyncio
import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from learner.curriculum import LearnerConfig
from learner.live_record import LiveRecord, Weighed, weigh, words
from learner.rows import RowBatch, SkipReason, TrainingRow
from learner.sources import Gathered, StepPlan
from learner.trees import rows_of_tree
from memory.neighbours import GradedNeighbour
from memory.store import Store
from memory.types import Call, Cycle, Split, TaskRole

NEIGHBOURS = 16
"""How many near episodes a baseline rests on, besides its skill's mean. On synthetic tasks in 16
dimensions 16 left the least variance of 4, 8, 16 and 32 where 32 to 64 episodes are known, and
nearly the least where 256 are."""
MAX_EPISODES = 512
"""The newest that a cycle looks at; their baselines take under a second."""


class FindsNeighbours(Protocol):
    """Finds the graded episodes most like others."""

    def nearest(
        self, episode_ids: Sequence[str], *, until: datetime, limit: int
    ) -> Mapping[str, Sequence[GradedNeighbour]]:
        """Return for each episode its nearest of the same skill and of other sessions.

        None that began after ``until``.
        """


class LiveGroups:
    """Rows of recorded episodes; a source of an optimizer step's rows."""

    def __init__(self, store: Store, neighbours: FindsNeighbours, config: LearnerConfig) -> None:
        self._store = store
        self._neighbours = neighbours
        self._config = config

    def record(self, cycle: Cycle) -> LiveRecord:
        """Return what may teach in a cycle; takes up to a second, call it off the event loop."""
        graded = self._store.graded
        skill_ids = proven_skills(self._store, cycle)
        until = cycle.created_at
        episodes = graded.newest(sorted(skill_ids), until=until, limit=MAX_EPISODES)
        ids = [one.id for one in episodes]
        heldout_tasks = self._store.tasks.of_skills(cycle.skill_ids, Split.HELDOUT)
        found = weigh(
            episodes,
            self._neighbours.nearest(ids, until=until, limit=NEIGHBOURS),
            trained=cycle.start_version,
            taught=graded.taught(cycle.start_version),
            heldout_questions={words(task.text) for task in heldout_tasks},
            config=self._config,
        )
        advisory = Counter({SkipReason.ADVISORY: graded.num_advisory(sorted(skill_ids))})
        return dataclasses.replace(found, skipped=Counter(found.skipped) + advisory)

    async def gather(self, plan: StepPlan) -> Gathered:
        """Return the rows of the step's share of the episodes; none once all had their turns."""
        cycle = self._store.cycles.get(plan.cycle_id)
        return await asyncio.to_thread(self._gather, cycle, plan)

    def rows_of(self, weighed: Weighed) -> tuple[TrainingRow, ...] | SkipReason:
        """Return an episode's rows, each sampled token once, or why there are none."""
        return self._rows(weighed, self._store.episodes.calls(weighed.episode.id))

    def _rows(
        self, weighed: Weighed, calls: Sequence[Call]
    ) -> tuple[TrainingRow, ...] | SkipReason:
        group_id = f"live-{weighed.episode.id}"
        rows = rows_of_tree(calls, group_id=group_id, advantage=weighed.advantage).rows
        if not rows:
            return SkipReason.UNTRAINABLE
        if any(len(row.token_ids) > self._config.max_row_tokens for row in rows):
            return SkipReason.TOO_LONG
        return rows

    def _gather(self, cycle: Cycle, plan: StepPlan) -> Gathered:
        record = self.record(cycle)
        turns = turns_of(record.train, plan, self._config)
        rows: list[TrainingRow] = []
        skipped: Counter[SkipReason] = Counter()
        taught: set[str] = set()
        num_truncated = 0
        skills: dict[int, bool] = defaultdict(bool)  # whether it has a row
        for one in turns:
            calls = self._store.episodes.calls(one.episode.id)
            found = self._rows(one, calls)
            skills[one.episode.skill_id] |= not isinstance(found, SkipReason)
            if isinstance(found, SkipReason):
                skipped[found] += 1
                continue
            rows += found
            num_truncated += any(call.finish_reason == "length" for call in calls)
            taught.add(one.episode.id)
        batch = RowBatch(
            rows=tuple(rows),
            num_groups=len(skills),
            num_rollouts=len(turns),
            num_trained_groups=sum(skills.values()),
            num_truncated=num_truncated,
            skipped_rollouts=dict(skipped),
        )
        receipt = {"live_rows": len(rows), "live": record.to_json()}
        return Gathered(
            batch=batch, episode_ids=frozenset(taught), receipt=receipt, is_over=not turns
        )


def proven_skills(store: Store, cycle: Cycle) -> Collection[int]:
    """Return the skills of a cycle whose recorded work may teach.

    Where held-out tasks prove a cycle, only skills that have some among them teach: what another
    one's episodes did would go unseen.
    """
    proving = store.cycles.tasks(cycle.id).get(TaskRole.HELDOUT, [])
    return {task.skill_id for task in proving if task.skill_id} or cycle.skill_ids


def turns_of(train: Sequence[Weighed], plan: StepPlan, config: LearnerConfig) -> Sequence[Weighed]:
    """Return the episodes whose turn it is in a step: in a fixed order, ``live_epochs`` times each.

    The order is another one in each cycle, and the same whoever asks.
    """

    def place(one: Weighed) -> bytes:
        return hashlib.sha256(f"{plan.cycle_id}/{one.episode.id}".encode()).digest()

    order = sorted(train, key=place)
    # No episode twice in one step, however few there are.
    num = min(config.live_episodes_per_step, len(order))
    start = (plan.index - 1) * num
    end = min(start + num, config.live_epochs * len(order))
    return [order[turn % len(order)] for turn in range(start, end)]
