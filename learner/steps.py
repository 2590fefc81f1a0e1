"""The optimizer steps of one cycle: choose tasks, gather rows, train, let the engine have them.

It does not know where rows come from, nor what becomes of the weights that the last step leaves.
"""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learner import curriculum
from learner.errors import NoSignalError
from learner.rows import write_rows
from learner.sources import Gathered, StepPlan
from learner.training_process import TrainingProcess
from learner.workshop import Progress, Workshop
from memory.types import Cycle, CycleStep, TaskSpec, utc_now


@dataclass(kw_only=True, slots=True)
class Steps:
    """The steps of one cycle, and what came of them."""

    cycle: Cycle
    workshop: Workshop
    progress: Progress
    folder: Path  # where rows and adapters go
    name: str  # that the version will probably have
    taught: set[str] = field(default_factory=set)  # ids of the episodes that were trained on
    receipts: list[dict[str, Any]] = field(default_factory=list)

    async def run(self, train: list[TaskSpec], training: TrainingProcess) -> Path | None:
        """Make all steps; return the last weights' folder, None when none had signal.

        Args:
            train: the tasks to choose from, those to prefer first.
            training: the process that trains.
        """
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
                plan = StepPlan(cycle_id=self.cycle.id, index=index, adapter=adapter, tasks=chosen)
                trained = await self._step(plan, training)
                if trained is None:
                    continue
                step_name = f"{self.name}-step-{index:02d}-{self.cycle.id[-8:]}"
                await self.workshop.weights.load_ephemeral(step_name, trained)
                self._forget(adapter)
                adapter, weights = step_name, trained
        finally:
            self._forget(adapter)
        return weights

    async def _step(self, plan: StepPlan, training: TrainingProcess) -> Path | None:
        """Gather and train once; return the new weights, None when there was no signal."""
        began = time.perf_counter()
        gathered = await self._gather(plan)
        sampled = time.perf_counter()
        receipt = gathered.to_json() | {"adapter": plan.adapter}
        receipt["seconds_sampling"] = sampled - began
        out = None
        if gathered.batch.rows:
            self.progress.phase = "training"
            out = self.folder / f"step-{plan.index:02d}"
            try:
                receipt |= await self._train(gathered, out, training)
                self.taught |= gathered.episode_ids
            except NoSignalError as error:  # this step's rows hold none; the next step's may
                out, receipt["no_signal"] = None, error.message
        receipt["seconds_training"] = time.perf_counter() - sampled
        receipt["seconds"] = time.perf_counter() - began
        self.receipts.append(receipt)
        step = CycleStep(
            cycle_id=self.cycle.id, index=plan.index, created_at=utc_now(), receipt=receipt
        )
        await asyncio.to_thread(self.workshop.store.cycles.add_step, step)
        return out

    async def _gather(self, plan: StepPlan) -> Gathered:
        gathered = await self.workshop.rows.gather(plan)
        if gathered.batch.rows:
            for source in self.workshop.extra_rows:
                gathered = gathered.plus(await source.gather(plan))
        return gathered

    async def _train(
        self, gathered: Gathered, out: Path, training: TrainingProcess
    ) -> dict[str, Any]:
        """Train on rows, which are no longer in any file afterwards; return the step's receipt."""
        rows_path = out.with_suffix(".jsonl")
        try:
            await asyncio.to_thread(write_rows, rows_path, gathered.batch.rows)
            return await training.step(rows_path, out)
        finally:
            rows_path.unlink(missing_ok=True)

    def _forget(self, adapter: str) -> None:
        if adapter != self.cycle.start_version:
            self.workshop.weights.unload(adapter)
