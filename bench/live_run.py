"""Learning from single episodes: each task is answered once, graded once and never tried again.

Nothing in such a record says how hard a task is, or how strict its grader. The neighbours' outcomes
do (``neighbours``), or nothing does (``overall``): the same tasks in the same order from the same
weights, once with each baseline. What counts was fixed before the first of the runs that count: the
mean held-out score of all points of the curve but the first. How often ``neighbours`` is ahead of
``overall``, of all seeds, is the figure. A held-out score is the share of right answers, sampled at
the temperature at which the stream is answered.

Among the tasks is a kind that is beyond the base model, as in any agent's work, and each kind has a
grader of its own, lenient or strict.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bench.learning_curves import Checkpoint, Curve, Point
from bench.learning_mix import STREAM_MIX, Kind, Mix, Scores, kind_of, mix_of
from bench.learning_run import LearningRun, RowsFn
from bench.workbench import BASE_WEIGHTS, Keep, Weights, Workbench, say
from learner.curriculum import LearnerConfig
from learner.live_baseline import (
    advantages,
    baselines,
    nearest_only,
    overall_means,
    unexplained_share,
)
from learner.live_groups import NEIGHBOURS
from learner.rows import Rollout, RolloutGroup, RowBatch, SkipReason, row_of, skip_reason
from memory.embed import MiniLmEmbedder
from memory.types import TaskSpec

Baseline = Literal["neighbours", "overall"]
BASELINES: tuple[Baseline, ...] = ("neighbours", "overall")
EPISODES_A_STEP = 50  # ten of each kind
NUM_HELDOUT = 200
NUM_ANSWERS = 2  # to each held-out task
TURN = 4  # steps between points of the curve
GROUP_SIZE = 8  # of practice on about as many rollouts


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """What a baseline may know of a task."""

    kind: Kind
    vector_D: npt.NDArray[np.float32]


@dataclass(slots=True)
class SingleEpisodes:
    """Makes rows of a step's episodes; one rollout a group.

    Attributes:
        shares: of each step, the part of the outcomes' variance that the neighbours leave.
    """

    tasks: dict[str, _Task]
    baseline: Baseline
    shares: list[float] = field(default_factory=list)

    def __call__(self, groups: list[RolloutGroup]) -> RowBatch:
        """Compare each episode with the others."""
        usable = [
            (group, group.rollouts[0]) for group in groups if skip_reason(group.rollouts[0]) is None
        ]
        expected, found = self._compared(usable)
        rows = [
            row_of(rollout, float(advantage), group_id=group.id)
            for (group, rollout), advantage in zip(usable, found, strict=True)
            if advantage != 0.0
        ]
        return RowBatch(
            rows=tuple(rows),
            num_groups=len(groups),
            num_rollouts=len(groups),
            num_trained_groups=len(rows),
            num_truncated=sum(rollout.finish_reason == "length" for _, rollout in usable),
            skipped_rollouts={SkipReason.ZERO_SIGNAL: len(expected) - len(rows)},
        )

    def _compared(
        self, usable: Sequence[tuple[RolloutGroup, Rollout]]
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return what was to be expected of each, and by how much each was better."""
        tasks = [self.tasks[group.task_id] for group, _ in usable]
        lows, highs = np.array([task.kind.grades for task in tasks], dtype=np.float64).T
        right = np.array([rollout.reward for _, rollout in usable], dtype=np.float64)
        outcomes = lows + (highs - lows) * right
        vectors = np.stack([task.vector_D for task in tasks]).astype(np.float64)
        distances = nearest_only(np.clip(1 - vectors @ vectors.T, 0, 2), NEIGHBOURS)
        kinds = [task.kind.name for task in tasks]
        overall = overall_means(outcomes)
        near = baselines(outcomes, distances, skills_N=kinds)
        if (share := unexplained_share(outcomes, near, overall)) is not None:
            self.shares.append(share)
        if self.baseline == "overall":
            return overall, advantages(outcomes, overall)
        return near, advantages(outcomes, near, skills_N=kinds)


async def measure(
    bench: Workbench, *, seeds: Sequence[int], num_steps: int, config: LearnerConfig, keep: Keep
) -> dict[str, Any]:
    """Learn the stream with both baselines from every seed, and by practice from the first.

    Args:
        bench: engine and training.
        seeds: of the tasks' order and the initial adapters.
        num_steps: optimizer steps, each on ``EPISODES_A_STEP`` new episodes.
        config: the trainer's settings and the temperature.
        keep: told after every curve.
    """
    runs: list[dict[str, Any]] = []
    before: Scores | None = None
    began, num_runs = time.monotonic(), len(seeds) * len(BASELINES) + 1
    for seed in seeds:
        mix = mix_of(
            STREAM_MIX, num_train=num_steps * EPISODES_A_STEP, num_heldout=NUM_HELDOUT, seed=seed
        )
        if len({task.id for task in mix.train}) < len(mix.train):
            raise ValueError("a task comes twice in the stream; take fewer steps")
        if before is None:
            before = await _score(bench, mix, BASE_WEIGHTS, config)
            say(f"  before: {before.by_kind}")
        own = config.model_copy(update={"seed": seed})
        stream = _Stream(bench, mix, before, num_steps, own)
        for name in (*BASELINES, *(("practice",) if seed == seeds[0] else ())):
            found = {"seed": seed, "name": name, **await stream.learned(name)}
            runs.append(found)
            keep({"runs": runs})
            left_s = (time.monotonic() - began) / len(runs) * (num_runs - len(runs))
            say(f"  seed {seed}, {name}: {found['mean_score']:.3f}; {left_s / 60:.0f} min left")
    return {"settings": _settings(config, num_steps), **_compared(runs), "runs": runs}


@dataclass(frozen=True, slots=True)
class _Stream:
    """One seed's tasks, and the ways to learn from them."""

    bench: Workbench
    mix: Mix
    before: Scores
    num_steps: int
    config: LearnerConfig

    async def learned(self, name: str) -> dict[str, Any]:
        """Learn in one way from the first task to the last."""
        rows: RowsFn | None = None
        sizes = {"tasks_per_step": EPISODES_A_STEP // GROUP_SIZE, "group_size": GROUP_SIZE}
        if name in BASELINES:
            sizes = {"tasks_per_step": EPISODES_A_STEP, "group_size": 1}
            rows = SingleEpisodes(
                tasks=_known(self.mix.train),
                baseline="neighbours" if name == "neighbours" else "overall",
            )
        config = self.config.model_copy(update=sizes)
        first = Checkpoint(step=0, num_rollouts=0, seconds=0.0, weights=BASE_WEIGHTS)
        curve = Curve([Point(checkpoint=first, scores=self.before)])
        async with LearningRun(self.bench, self.mix.train, config, rows=rows) as run:
            for done in range(0, self.num_steps, TURN):
                reached = await run.advance(min(TURN, self.num_steps - done))
                scores = await _score(self.bench, self.mix, run.weights, config)
                curve.points.append(Point(checkpoint=reached, scores=scores))
        found = {
            "mean_score": round(curve.mean_score(), 4),
            "last_score": round(curve.last.scores.mean, 4),
            "rewards": [round(one["reward_mean"], 4) for one in run.receipts],
            "curve": curve.to_json(),
        }
        if isinstance(rows, SingleEpisodes):
            found["unexplained_share"] = round(fmean(rows.shares), 3)
        return found


async def _score(bench: Workbench, mix: Mix, weights: Weights, config: LearnerConfig) -> Scores:
    """Answer held-out tasks as the stream's are answered."""
    return await bench.score(
        mix.heldout, weights, num_samples=NUM_ANSWERS, temperature=config.temperature
    )


def _known(tasks: Sequence[TaskSpec]) -> dict[str, _Task]:
    """Return what a baseline may know of each task: its kind as its skill, and its vector."""
    found = MiniLmEmbedder().embed([task.text for task in tasks])
    kinds = {kind.name: kind for kind in STREAM_MIX}
    known = {}
    for task, embedding in zip(tasks, found, strict=True):
        if embedding.vector_D is None:
            raise ValueError(f"task {task.id} has no vector: {embedding.reason}")
        known[task.id] = _Task(kind=kinds[kind_of(task)], vector_D=embedding.vector_D)
    return known


def _compared(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Say how often, and by how much, neighbours were ahead."""
    score = {(run["seed"], run["name"]): run["mean_score"] for run in runs}
    seeds = sorted({run["seed"] for run in runs})
    gains = [score[seed, "neighbours"] - score[seed, "overall"] for seed in seeds]
    return {
        "seeds_ahead": sum(gain > 0 for gain in gains),
        "num_seeds": len(seeds),
        "gains": [round(gain, 4) for gain in gains],
        "mean_gain": round(fmean(gains), 4),
        "unexplained_share": {
            name: round(fmean(run["unexplained_share"] for run in runs if run["name"] == name), 3)
            for name in BASELINES
        },
        "practice_first_seed": score[seeds[0], "practice"],
    }


def _settings(config: LearnerConfig, num_steps: int) -> dict[str, Any]:
    shared = config.model_dump(mode="json", include={"rank", "alpha", "learning_rate", "objective"})
    return {
        **shared,
        "temperature": config.temperature,
        "steps": num_steps,
        "episodes_a_step": EPISODES_A_STEP,
        "neighbours": NEIGHBOURS,
        "skills": "known",
        "practice": f"{EPISODES_A_STEP // GROUP_SIZE} tasks x {GROUP_SIZE} rollouts a step",
        "figure": "mean held-out score of all points of the curve but the first",
    }
