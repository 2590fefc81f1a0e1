"""Where the rows of an optimizer step come from: the seam, and practice as its first filling.

A source is asked for one step at a time and answers with training rows, an account of what it
considered, and the episodes that would teach. Asked again for the same step, by the service that
goes on with a cycle, it answers the same. It does not know how rows are trained.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from learner.curriculum import LearnerConfig
from learner.receipts import practice_receipt
from learner.rollouts import Practice, group_of
from learner.rows import RowBatch, SkipReason, rows_of
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
    tasks: Sequence[TaskSpec]  # chosen for practice
    part: str | None = None  # of the step, where it samples more than once

    @property
    def stage(self) -> CycleStage:
        """Where what is sampled for it belongs."""
        stage = stage_of(self.cycle_id, self.index)
        return stage if self.part is None else replace(stage, name=f"{stage.name}-{self.part}")

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

    def plus(self, other: "Gathered") -> "Gathered":
        """Return both as one; what the other counts is added, its receipt's names are its own."""
        return Gathered(
            batch=_joined(self.batch, other.batch),
            episode_ids=self.episode_ids | other.episode_ids,
            receipt={**self.receipt, **other.receipt},
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
    """Rows of fresh tries at the step's tasks by the weights that are trained."""

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
            group_of(trials, group_id=plan.group_id(i)) for i, trials in enumerate(tried) if trials
        ]
        return Gathered(
            batch=rows_of(groups, baseline=config.baseline, normalize_std=config.normalize_std),
            episode_ids=frozenset(t.call.episode_id for trials in tried for t in trials),
            receipt=practice_receipt(tried),
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


def _joined(one: RowBatch, other: RowBatch) -> RowBatch:
    skipped_groups: Counter[SkipReason] = Counter(one.skipped_groups)
    skipped_rollouts: Counter[SkipReason] = Counter(one.skipped_rollouts)
    skipped_groups.update(other.skipped_groups)
    skipped_rollouts.update(other.skipped_rollouts)
    return RowBatch(
        rows=(*one.rows, *other.rows),
        num_groups=one.num_groups + other.num_groups,
        num_rollouts=one.num_rollouts + other.num_rollouts,
        num_trained_groups=one.num_trained_groups + other.num_trained_groups,
        num_truncated=one.num_truncated + other.num_truncated,
        skipped_groups=dict(skipped_groups),
        skipped_rollouts=dict(skipped_rollouts),
    )
