"""The optimizer steps of one cycle: choose tasks, gather rows, train, let the engine have them.

A step whose receipt is in the store is done: its weights and the optimizer's moments lie in the
cycle's folder, and whoever goes on with the cycle goes on from them. Of a step without a receipt
nothing counts but what it sampled. It does not know where rows come from, nor what becomes of the
weights that the last step leaves.
"""

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learner import curriculum, metrics
from learner.adapter_files import moments_path
from learner.adapter_format import inspect
from learner.errors import CycleStoppedError, NoSignalError
from learner.rows import write_rows
from learner.sources import Gathered, StepPlan, stage_of
from learner.training_process import TrainingProcess
from learner.workshop import Progress, Workshop
from memory.errors import AdapterError
from memory.types import Cycle, CycleStep, TaskSpec, utc_now

SHA256 = "sha256"
"""In the receipt of a step that was trained: of its weights."""


@dataclass(kw_only=True, slots=True)
class Steps:
    """The steps of one cycle, and what came of them."""

    cycle: Cycle
    workshop: Workshop
    progress: Progress
    folder: Path  # where rows and adapters go
    name: str  # that the version will probably have
    done: list[CycleStep] = field(default_factory=list)

    @property
    def are_done(self) -> bool:
        """Whether no step is left to make."""
        return len(self.done) >= self.workshop.learner.steps_per_cycle

    @property
    def weights(self) -> Path | None:
        """The folder that the newest trained step has left; None when none was trained."""
        return self._folder_of(self._trained[-1].index) if self._trained else None

    def taught(self) -> set[str]:
        """Return the ids of the episodes that the weights have learned from."""
        stages = [stage_of(self.cycle.id, step.index) for step in self._trained]
        return set().union(*map(self.workshop.store.cycles.episodes_of, stages))

    def restore(self) -> None:
        """Take over what other services have done of the cycle, and clear away the rest.

        Raises:
            CycleStoppedError: what the newest trained step has left is gone, or another.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.done = self.workshop.store.cycles.steps(self.cycle.id)
        newest = self.weights
        if newest is not None:
            try:
                found = inspect(newest).sha256
            except AdapterError as error:
                raise CycleStoppedError(f"{newest.name} cannot be gone on from: {error}") from error
            if found != self._trained[-1].receipt[SHA256]:
                raise CycleStoppedError(f"{newest.name} cannot be gone on from: it was changed")
        kept = set() if newest is None else {newest, moments_path(newest)}
        for path in set(self.folder.iterdir()) - kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def run(self, train: Sequence[TaskSpec], training: TrainingProcess) -> None:
        """Make the steps that are left.

        Args:
            train: the tasks to choose from, those to prefer first.
            training: the process that trains; it goes on from ``weights``.
        """
        self.progress.num_steps = self.workshop.learner.steps_per_cycle
        adapter, num_done = self.cycle.start_version, len(self.done)
        tries = await asyncio.to_thread(
            self.workshop.store.tasks.tries, self.cycle.skill_ids, before_cycle=self.cycle.id
        )
        values = {task.id: curriculum.value_of(tries.get(task.id)) for task in train}
        try:
            if self.weights is not None:
                adapter = await self._serve(self._trained[-1].index)
            for index, tasks in enumerate(self._choices(train, values), start=1):
                if index <= num_done:
                    continue
                self.progress.step, self.progress.phase = index, "practising"
                plan = StepPlan(cycle_id=self.cycle.id, index=index, adapter=adapter, tasks=tasks)
                began = time.perf_counter()
                gathered = await self._gather(plan)
                if gathered.is_over and self.done:
                    break  # a cycle's first step is written down whatever it has: it says why
                seconds = time.perf_counter() - began
                if await self._step(plan, gathered, training, seconds_sampling=seconds):
                    served = await self._serve(index)
                    self._forget(adapter)
                    adapter = served
        finally:
            self._forget(adapter)

    @property
    def _trained(self) -> list[CycleStep]:
        return [step for step in self.done if SHA256 in step.receipt]

    def _choices(
        self, train: Sequence[TaskSpec], values: Mapping[str, float]
    ) -> Iterator[list[TaskSpec]]:
        """Yield each step's tasks, the same whoever asks."""
        config = self.workshop.learner
        num_tried: Counter[str] = Counter()
        for index in range(1, config.steps_per_cycle + 1):
            chosen = curriculum.choose_for_step(
                train,
                config.tasks_per_step,
                random.Random(f"{self.cycle.id}/{index}"),
                values=values,
                num_tried=num_tried,
                revisit_share=config.revisit_share,
            )
            num_tried.update(task.id for task in chosen)
            yield chosen

    async def _step(
        self,
        plan: StepPlan,
        gathered: Gathered,
        training: TrainingProcess,
        *,
        seconds_sampling: float,
    ) -> bool:
        """Train once; return whether there was signal, and so new weights."""
        began = time.perf_counter()
        receipt = gathered.to_json() | {"adapter": plan.adapter}
        receipt["seconds_sampling"] = seconds_sampling
        if gathered.batch.rows:
            self.progress.phase = "training"
            try:
                receipt |= await self._train(plan, gathered, training)
            except NoSignalError as error:  # this step's rows hold none; the next step's may
                receipt["no_signal"] = error.message
        receipt["seconds_training"] = time.perf_counter() - began
        receipt["seconds"] = seconds_sampling + receipt["seconds_training"]
        before = self.weights
        step = CycleStep(
            cycle_id=self.cycle.id, index=plan.index, created_at=utc_now(), receipt=receipt
        )
        await asyncio.to_thread(self.workshop.store.cycles.add_step, step)
        self.done.append(step)
        metrics.note_step(receipt)
        if before not in {None, self.weights}:
            moments_path(before).unlink(missing_ok=True)
        return SHA256 in receipt

    async def _gather(self, plan: StepPlan) -> Gathered:
        gathered = await self.workshop.rows.gather(plan)
        if gathered.batch.rows:
            for source in self.workshop.extra_rows:
                gathered = gathered.plus(await source.gather(plan))
        return gathered

    async def _train(
        self, plan: StepPlan, gathered: Gathered, training: TrainingProcess
    ) -> dict[str, Any]:
        """Train on rows, which are no longer in any file afterwards; return what came of it."""
        cycles, out = self.workshop.store.cycles, self._folder_of(plan.index)
        await asyncio.to_thread(cycles.note_taught, plan.stage, gathered.episode_ids)
        self.workshop.check_erasure(self.cycle.id)
        rows_path = out.with_suffix(".jsonl")
        try:
            write_rows(rows_path, gathered.batch.rows)
            receipt = await training.step(rows_path, out, keep_moments=True)
        finally:
            rows_path.unlink(missing_ok=True)
        facts = await asyncio.to_thread(inspect, out)
        return receipt | {SHA256: facts.sha256}

    async def _serve(self, index: int) -> str:
        """Let the engine answer with a step's weights; return the name it knows them by."""
        name = f"{self.name}-step-{index:02d}-{self.cycle.id[-8:]}"
        await self.workshop.weights.load_ephemeral(name, self._folder_of(index))
        return name

    def _folder_of(self, index: int) -> Path:
        return self.folder / stage_of(self.cycle.id, index).name

    def _forget(self, adapter: str) -> None:
        if adapter != self.cycle.start_version:
            self.workshop.weights.unload(adapter)
