"""One learning cycle: practise, train, step by step; then prove the candidate on held-out work.

The sequence only: practice, training, versions, the gate and the pointer each have a module of
their own. Whatever fails in here leaves the live version untouched and a row that says why.

A cycle whose service stopped is not taken up again, although the training process could go on from
a step: its rows are people's words, which an erasure would have to find until then, and what it
had sampled and scored is known to nothing but the process that died. The next one starts afresh.
"""

import asyncio
import logging
import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from learner import curriculum
from learner.curriculum import LearnerConfig
from learner.errors import NoSignalError
from learner.gate import GateConfig, GateReport, Verdict, compare
from learner.pointer import Pointer
from learner.registry import Registry
from learner.rollouts import Practice, Trial, group_of, mean_reward
from learner.rows import RowBatch, rows_of, write_rows
from learner.training_process import TrainingProcess
from memory.cycle_store import WHY_INTERRUPTED
from memory.errors import ConflictError
from memory.store import Store
from memory.types import (
    Cycle,
    CycleState,
    CycleStep,
    Split,
    TaskSpec,
    VersionStatus,
    utc_now,
)

log = logging.getLogger(__name__)
# The trainer computes log-probabilities over the whole vocabulary; so must the sampler draw,
# whatever the task's request or the model's own defaults say.
FULL_DISTRIBUTION = {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class Weights(Protocol):
    """What lets the engine answer with weights that have no version yet."""

    async def load_ephemeral(self, name: str, path: Path) -> None:
        """Make an adapter folder answer under a name of its own."""

    def unload(self, name: str) -> None:
        """Forget it again, once nothing uses it any more."""

    async def publish(self, version: str) -> None:
        """Verify, load and probe a version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What a cycle works with."""

    store: Store
    registry: Registry
    pointer: Pointer
    practice: Practice
    weights: Weights
    open_training: Callable[[Path | None], TrainingProcess]  # from the adapter to continue from
    work_dir: Path
    learner: LearnerConfig
    gate: GateConfig
    promotes_by_itself: bool


@dataclass(slots=True)
class Progress:
    """Where the cycle is, for people who watch."""

    phase: str = "starting"
    step: int = 0
    num_steps: int = 0


@dataclass(slots=True)
class LearningCycle:
    """One run. ``await run()`` never raises for a failed cycle; the verdict is in the store."""

    cycle: Cycle
    workshop: Workshop
    progress: Progress = field(default_factory=Progress)
    _trained: list[Trial] = field(default_factory=list)
    _receipts: list[dict[str, Any]] = field(default_factory=list)

    async def run(self) -> Cycle:
        """Learn, prove, and settle what becomes of it."""
        try:
            state, reason = await self._learn()
        except NoSignalError as error:
            state, reason = CycleState.NO_SIGNAL, error.message
        except asyncio.CancelledError:
            self._end(CycleState.INTERRUPTED, WHY_INTERRUPTED)
            raise
        except Exception as error:  # a failed cycle is a row, not an outage
            log.exception("cycle %s failed", self.cycle.id)
            state, reason = CycleState.FAILED, f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(self._dir, ignore_errors=True)
        return self._end(state, reason)

    @property
    def _dir(self) -> Path:
        return self.workshop.work_dir / self.cycle.id

    async def _learn(self) -> tuple[CycleState, str]:
        shop, start = self.workshop, self.cycle.start_version
        train, heldout, guards = self._tasks()
        self._dir.mkdir(parents=True)
        name = shop.registry.next_name()
        parent = await shop.registry.parent_path(start)
        async with shop.open_training(parent) as training:
            self.progress.phase = "scoring the live version on held-out tasks"
            tests = [*heldout, *guards]
            before = await shop.practice.score(tests, adapter=start, cycle_id=self.cycle.id)
            weights = await self._steps(train, training, name)
        if weights is None:
            raise NoSignalError(self._why_no_signal())
        sealed = await asyncio.to_thread(
            shop.registry.seal,
            weights,
            parent=start,
            cycle_id=self.cycle.id,
            episode_ids={trial.call.episode_id for trial in self._trained},
        )
        name = sealed.id  # an import may have taken the one that was next when the cycle began
        shop.store.cycles.set_candidate(self.cycle.id, name)
        await shop.weights.publish(name)
        self.progress.phase = "scoring the candidate on held-out tasks"
        after = await shop.practice.score(tests, adapter=name, cycle_id=self.cycle.id)
        skills = {task.id: task.skill_id for task in tests}
        guard_ids = frozenset(task.id for task in guards)
        report = compare(before, after, skills, config=shop.gate, guards=guard_ids)
        shop.store.cycles.set_gate(self.cycle.id, report.to_json())
        return await self._settle(name, report)

    def _tasks(self) -> tuple[list[TaskSpec], list[TaskSpec], list[TaskSpec]]:
        """Return tasks to practise, held-out ones to prove a gain, and ones of every other skill.

        Raises:
            NoSignalError: there is nothing to practise, or too little to prove a gain on.
        """
        shop, mine = self.workshop, self.cycle.skill_ids
        train = shop.store.tasks.of_skills(mine, Split.TRAIN)
        if not train:
            raise NoSignalError("the skills have no training tasks")
        rng = random.Random(self.cycle.id)
        others = [skill.id for skill in shop.store.skills.all() if skill.id not in mine]
        heldout, guards = (
            self._sample(shop.store.tasks.of_skills(skill_ids, Split.HELDOUT), num, rng)
            for skill_ids, num in (
                (mine, shop.learner.max_heldout_tasks),
                (others, shop.learner.max_heldout_tasks // 2),
            )
        )
        if len(heldout) < shop.gate.min_tasks:
            raise NoSignalError(
                f"the skills have {len(heldout)} of {shop.gate.min_tasks} held-out tasks "
                "(promotion.min_tasks), too few to prove a gain"
            )
        return train, heldout, guards

    def _sample(self, tasks: list[TaskSpec], num: int, rng: random.Random) -> list[TaskSpec]:
        """Choose other tasks in each cycle, so that retries are not selected on the same ones."""
        rng.shuffle(tasks)
        return curriculum.choose(tasks, num, rng)

    async def _steps(
        self, train: list[TaskSpec], training: TrainingProcess, name: str
    ) -> Path | None:
        """Run the optimizer steps; return the last weights' folder, None when none had signal."""
        config = self.workshop.learner
        self.progress.num_steps = config.steps_per_cycle
        rng = random.Random(self.cycle.id)
        adapter, weights = self.cycle.start_version, None
        num_tried: dict[str, int] = {}
        try:
            for index in range(1, config.steps_per_cycle + 1):
                self.progress.phase, self.progress.step = "practising", index
                train.sort(key=lambda task: num_tried.get(task.id, 0))
                chosen = curriculum.choose(train, config.tasks_per_step, rng)
                for task in chosen:
                    num_tried[task.id] = num_tried.get(task.id, 0) + 1
                trained = await self._step(index, chosen, adapter, training)
                if trained is None:
                    continue
                step_name = f"{name}-step-{index:02d}-{self.cycle.id[-8:]}"
                await self.workshop.weights.load_ephemeral(step_name, trained)
                self._forget(adapter)
                adapter, weights = step_name, trained
        finally:
            self._forget(adapter)
        return weights

    async def _step(
        self, index: int, tasks: Sequence[TaskSpec], adapter: str, training: TrainingProcess
    ) -> Path | None:
        """Practise and train once; return the new weights, None when there was no signal."""
        config, began = self.workshop.learner, time.perf_counter()
        tried = await self.workshop.practice.practise(
            tasks,
            adapter=adapter,
            num_samples=config.group_size,
            sampling={"temperature": config.temperature, **FULL_DISTRIBUTION},
            cycle_id=self.cycle.id,
        )
        sampled = time.perf_counter()
        await asyncio.to_thread(
            self.workshop.store.tasks.note_practice,
            {trials[0].task.id: mean_reward(trials) for trials in tried if trials},
        )
        groups = [
            group_of(trials, group_id=f"{self.cycle.id}-{index:02d}-{i}")
            for i, trials in enumerate(tried)
            if trials
        ]
        batch = rows_of(groups, baseline=config.baseline, normalize_std=config.normalize_std)
        receipt = practice_receipt(tried, batch) | {"adapter": adapter}
        receipt["seconds_sampling"] = sampled - began
        out = None
        if batch.rows:
            self.progress.phase = "training"
            out = self._dir / f"step-{index:02d}"
            rows_path = self._dir / f"step-{index:02d}.jsonl"
            write_rows(rows_path, batch.rows)
            try:
                receipt |= await training.step(rows_path, out)
                self._trained += [trial for trials in tried for trial in trials]
            except NoSignalError as error:  # this step's rows hold none; the next step's may
                out, receipt["no_signal"] = None, error.message
        receipt["seconds_training"] = time.perf_counter() - sampled
        receipt["seconds"] = time.perf_counter() - began
        self._receipts.append(receipt)
        step = CycleStep(cycle_id=self.cycle.id, index=index, created_at=utc_now(), receipt=receipt)
        await asyncio.to_thread(self.workshop.store.cycles.add_step, step)
        return out

    def _forget(self, adapter: str) -> None:
        if adapter != self.cycle.start_version:
            self.workshop.weights.unload(adapter)

    async def _settle(self, name: str, report: GateReport) -> tuple[CycleState, str]:
        pointer, reason = self.workshop.pointer, "; ".join(report.reasons)
        try:
            if report.verdict is Verdict.REJECT:
                await pointer.reject(name, reason=reason)
                return CycleState.REJECTED, reason
            if report.verdict is Verdict.INCONCLUSIVE:
                return CycleState.INCONCLUSIVE, reason
            if not self.workshop.promotes_by_itself:
                return CycleState.PROPOSED, reason
            await pointer.approve(name, actor="gate", reason=reason)
            return CycleState.PROMOTED, reason
        except ConflictError as error:  # a person decided, or moved the pointer, meanwhile
            return self._decided(name), f"{error.message}; {reason}"

    def _decided(self, name: str) -> CycleState:
        status = self.workshop.store.versions.get(name).status
        if status is VersionStatus.CANDIDATE:
            return CycleState.PROPOSED
        was_rejected = status in {VersionStatus.REJECTED, VersionStatus.TAINTED}
        return CycleState.REJECTED if was_rejected else CycleState.PROMOTED

    def _why_no_signal(self) -> str:
        skipped: Counter[str] = Counter()
        for receipt in self._receipts:
            skipped.update(receipt["skipped_groups"])
        counted = ", ".join(f"{num} {reason}" for reason, num in skipped.items()) or "none"
        return (
            f"in none of {len(self._receipts)} steps did rollouts of one task differ in reward "
            f"(groups skipped: {counted})"
        )

    def _end(self, state: CycleState, reason: str) -> Cycle:
        if state in {CycleState.FAILED, CycleState.INTERRUPTED}:
            self.workshop.store.versions.reject_unproven(self.cycle.id)
        return self.workshop.store.cycles.end(
            self.cycle.id,
            state,
            reason,
            receipt={**self.cycle.receipt, **cycle_receipt(self._receipts)},
        )


def practice_receipt(tried: Sequence[Sequence[Trial]], batch: RowBatch) -> dict[str, Any]:
    """Account for what was sampled in a step, under TRL's names where it has them."""
    rewards = [
        [trial.outcome.value for trial in trials if trial.outcome.value is not None]
        for trials in tried
    ]
    flat = [value for values in rewards for value in values]
    compared = [values for values in rewards if len(values) > 1]
    equal = sum(max(values) == min(values) for values in compared)
    lengths = [len(t.call.completion_token_ids or ()) for trials in tried for t in trials]
    outcomes = Counter(
        str(trial.outcome.provenance or "none") for trials in tried for trial in trials
    )
    return batch.to_json() | {
        "rollouts_by_provenance": dict(outcomes),
        "reward_mean": statistics.fmean(flat) if flat else None,
        "reward_std": statistics.pstdev(flat) if flat else None,
        "frac_reward_zero_std": equal / len(compared) if compared else None,
        "mean_completion_tokens": statistics.fmean(lengths) if lengths else None,
    }


def cycle_receipt(steps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum the steps up."""
    trained = [step for step in steps if "trained_tokens" in step]
    provenance: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for step in steps:
        provenance.update(step["rollouts_by_provenance"])
        skipped.update(step["skipped_rollouts"])
    return {
        "rollouts_by_provenance": dict(provenance),
        "skipped_rollouts": dict(skipped),
        "num_steps": len(steps),
        "num_trained_steps": len(trained),
        "num_rollouts": sum(step["num_rollouts"] for step in steps),
        "trained_tokens": sum(step["trained_tokens"] for step in trained),
        "reward_first": steps[0]["reward_mean"] if steps else None,
        "reward_last": steps[-1]["reward_mean"] if steps else None,
        "seconds_sampling": sum(step["seconds_sampling"] for step in steps),
        "seconds_training": sum(step["seconds_training"] for step in steps),
    }
