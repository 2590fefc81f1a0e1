"""Where the rows of an optimizer step come from: the seam, and practice as its first filling.

A source is asked for one step at a time and answers with training rows, an account of what it
considered, and the episodes that would teach. Asked again for the same step, when its turn comes or
by the service that goes on with a cycle, it answers with what it has sampled already. It does not
know how rows are trained.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from learner.curriculum import LearnerConfig
from learner.receipts import practice_receipt
from learner.rollouts import Practice, Trial, group_of
from learner.rows import RolloutGroup, RowBatch, SkipReason, rows_of
from learner.staleness import MAX_STEPS, steps_between
from memory.types import CycleStage, TaskSpec

# The trainer computes log-probabilities over the whole vocabulary; so must the sampler draw,
# whatever the task's request or the model's own defaults say.
FULL_DISTRIBUTION = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlan:
    """One optimizer step before anything was done for it."""

    cycle_id: str
    index: int  # from 1
    adapter: str  # the weights that are trained: "base", a version, or an earlier step's
    earlier: Sequence[str] = ()  # those that the cycle has gone through before, oldest first
    tasks: Sequence[TaskSpec]  # chosen for practice
    part: str | None = None  # of the step, where it samples more than once

    @property
    def stage(self) -> CycleStage:
        """Where what is sampled for it belongs."""
        stage = stage_of(self.cycle_id, self.index)
        return stage if self.part is None else replace(stage, name=f"{stage.name}-{self.part}")

    def staleness_of(self, sampler: str) -> int | None:
        """Return how many optimizer steps old is what these weights sampled; None: unknown."""
        return steps_between(sampler, (*self.earlier, self.adapter))

    def group_id(self, number: int | str) -> str:
        """Name a group of this step."""
        part = "" if self.part is None else f"-{self.part}"
        return f"{self.cycle_id}-{self.index:02d}{part}-{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """What a source has for a step."""

    batch: RowBatch
    episode_ids: frozenset[str]  # that teach when the batch is trained
    receipt: Mapping[str, Any] = field(default_factory=dict)  # beside the batch's own account
    is_over: bool = False  # neither this step nor a later one of the cycle has rows

    def plus(self, other: "Gathered") -> "Gathered":
        """Return both as one; what the other counts is added, its receipt's names are its own."""
        return Gathered(
            batch=_joined(self.batch, other.batch),
            episode_ids=self.episode_ids | other.episode_ids,
            receipt={**self.receipt, **other.receipt},
            is_over=self.is_over and other.is_over,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the account of it, without the rows."""
        return self.batch.to_json() | dict(self.receipt)


class RowSource(Protocol):
    """Where rows come from."""

    async def gather(self, plan: StepPlan) -> Gathered:
        """Return what a step may be trained on; a batch without rows where nothing teaches.

        Raises:
            DenizenError: it cannot be told; the cycle fails.
        """


class PracticeRows:
    """Rows of tries at the step's tasks by the weights that are trained, or those one step before.

    Practised ahead, tries are by the weights that were trained then.
    """

    def __init__(self, practice: Practice, config: LearnerConfig) -> None:
        self._practice = practice
        self._config = config

    async def gather(self, plan: StepPlan) -> Gathered:
        """Try each task of the step, and compare the tries of each."""
        config = self._config
        tried = await self._practice.practise(
            plan.tasks,
            adapter=plan.adapter,
            num_samples=config.group_size,
            sampling={"temperature": config.temperature, **FULL_DISTRIBUTION},
            stage=plan.stage,
            counts=True,
        )
        groups = [
            _dated(group_of(trials, group_id=plan.group_id(i)), trials, plan)
            for i, trials in enumerate(tried)
            if trials
        ]
        return Gathered(
            batch=rows_of(
                groups,
                baseline=config.baseline,
                normalize_std=config.normalize_std,
                max_staleness=MAX_STEPS,
            ),
            episode_ids=frozenset(t.call.episode_id for trials in tried for t in trials),
            receipt=practice_receipt(tried),
            is_over=not plan.tasks,
        )


class JoinedRows:
    """Rows of several sources, each of which may be the only one that has any."""

    def __init__(self, *sources: RowSource) -> None:
        self._sources = sources

    async def gather(self, plan: StepPlan) -> Gathered:
        """Ask each source in turn; of receipts with the same names the later counts."""
        first, *others = [await source.gather(plan) for source in self._sources]
        for other in others:
            first = first.plus(other)
        return first


def stage_of(cycle_id: str, index: int) -> CycleStage:
    """Return the stage of a step."""
    return CycleStage(cycle_id=cycle_id, name=f"step-{index:02d}")


def _dated(group: RolloutGroup, trials: Sequence[Trial], plan: StepPlan) -> RolloutGroup:
    """Say of each rollout how old it is."""
    rollouts = [
        replace(rollout, staleness=plan.staleness_of(trial.call.adapter))
        for rollout, trial in zip(group.rollouts, trials, strict=True)
    ]
    return replace(group, rollouts=rollouts)


def _joined(one: RowBatch, other: RowBatch) -> RowBatch:
    skipped_groups: Counter[SkipReason] = Counter(one.skipped_groups)
    skipped_rollouts: Counter[SkipReason] = Counter(one.skipped_rollouts)
    skipped_groups.update(other.skipped_groups)
    skipped_rollouts.update(other.skipped_rollouts)
    ages: Counter[int] = Counter(one.ages)
    ages.update(other.ages)
    return RowBatch(
        rows=(*one.rows, *other.rows),
        num_groups=one.num_groups + other.num_groups,
        num_rollouts=one.num_rollouts + other.num_rollouts,
        num_trained_groups=one.num_trained_groups + other.num_trained_groups,
        num_truncated=one.num_truncated + other.num_truncated,
        skipped_groups=dict(skipped_groups),
        skipped_rollouts=dict(skipped_rollouts),
        ages=dict(ages),
    )
