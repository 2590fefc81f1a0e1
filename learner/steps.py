"""The optimizer steps of one cycle: choose tasks, let the engine have the weights, gather, train.

A step whose receipt is in the store is done: its weights and the optimizer's moments lie in the
cycle's folder, and whoever goes on with the cycle goes on from them. Of a step without a receipt
nothing counts but what it sampled. It does not know where rows come from, nor what becomes of the
weights that the last step leaves.

Where sources sample ahead, step n + 1 is sampled while step n is trained, by the weights that step
n - 1 has left; step 1 and step 2 are by those that the cycle starts from. Which weights those are,
and which tasks (chosen by what was known before the cycle), does not depend on when anything ended
or was killed: where the weights have answered no more, they are loaded again.
"""

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from learner import curriculum, metrics
from learner.adapter_files import moments_path
from learner.adapter_format import inspect
from learner.errors import CycleStoppedError, NoSignalError
from learner.prefetch import Prefetch
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
    _served: set[str] = field(default_factory=set)  # steps' weights that the engine has

    @property
    def are_done(self) -> bool:
        """Whether no step is left to make."""
        return len(self.done) >= self.workshop.learner.steps_per_cycle

    @property
    def weights(self) -> Path | None:
        """The folder that the newest trained step has left; None when none was trained."""
        trained = self._trained()
        return self._folder_of(trained[-1].index) if trained else None

    def taught(self) -> set[str]:
        """Return the ids of the episodes that the weights have learned from."""
        stages = [stage_of(self.cycle.id, step.index) for step in self._trained()]
        return set().union(*map(self.workshop.store.cycles.episodes_of, stages))

    def restore(self) -> None:
        """Take over what other services have done of the cycle, and clear away the rest.

        Raises:
            CycleStoppedError: what a step has left that is gone on from is gone, or another.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.done = self.workshop.store.cycles.steps(self.cycle.id)
        needed = self._trained()[-1:]
        if self.workshop.sampled_ahead:
            needed += self._trained(before=len(self.done))[-1:]
        for step in needed:
            self._check(step)
        kept = {self._folder_of(step.index) for step in needed}
        kept |= {moments_path(path) for path in kept}
        for path in set(self.folder.iterdir()) - kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def run(self, train: Sequence[TaskSpec], training: TrainingProcess) -> None:
        """Make the steps that are left.

        Args:
            train: the tasks to choose from, those to prefer first.
            training: the process that trains; it goes on from ``weights``.
        """
        shop = self.workshop
        self.progress.num_steps = shop.learner.steps_per_cycle
        tries = await asyncio.to_thread(
            shop.store.tasks.tries, self.cycle.skill_ids, before_cycle=self.cycle.id
        )
        values = {task.id: curriculum.value_of(tries.get(task.id)) for task in train}
        choices = list(self._choices(train, values))
        try:
            async with Prefetch(shop.sampled_ahead) as ahead:
                for index in range(len(self.done) + 1, len(choices) + 1):
                    if not await self._make(index, choices, training, ahead):
                        break
        finally:
            self._forget_all_but(None)

    async def _make(
        self,
        index: int,
        choices: Sequence[Sequence[TaskSpec]],
        training: TrainingProcess,
        ahead: Prefetch,
    ) -> bool:
        """Make a step; return False, and make none, where the cycle has no more rows."""
        self.progress.step, self.progress.phase = index, "practising"
        is_ahead, tasks = bool(self.workshop.sampled_ahead), choices[index - 1]
        plan = await self._plan(index, tasks, before=index)
        began, seconds = time.perf_counter(), 0.0
        if is_ahead:
            seconds = await ahead.end(await self._plan(index, tasks, before=index - 1))
        self._forget_all_but(plan.adapter)
        gathering = time.perf_counter()
        gathered = await self._gather(plan)
        seconds += time.perf_counter() - gathering
        if gathered.is_over and self.done:
            return False  # a cycle's first step is written down whatever it has: it says why
        if is_ahead and index < len(choices):
            ahead.begin(replace(plan, index=index + 1, tasks=choices[index]))
        await self._step(plan, gathered, training, began=began, seconds_sampling=seconds)
        return True

    async def _plan(self, index: int, tasks: Sequence[TaskSpec], *, before: int) -> StepPlan:
        """Plan a step with the weights of the steps before one; the engine has them then."""
        trained = self._trained(before=before)
        if trained:
            await self._serve(trained[-1].index)
        *earlier, adapter = (
            self.cycle.start_version,
            *(self._name_of(step.index) for step in trained),
        )
        return StepPlan(
            cycle_id=self.cycle.id, index=index, adapter=adapter, earlier=earlier, tasks=tasks
        )

    def _trained(self, *, before: int | None = None) -> list[CycleStep]:
        """Return the steps that have left weights, all of them or those before one."""
        trained = [step for step in self.done if SHA256 in step.receipt]
        return [step for step in trained if before is None or step.index < before]

    def _check(self, step: CycleStep) -> None:
        """Refuse to go on from weights that are not what a step has left."""
        path = self._folder_of(step.index)
        try:
            found = inspect(path).sha256
        except AdapterError as error:
            raise CycleStoppedError(f"{path.name} cannot be gone on from: {error}") from error
        if found != step.receipt[SHA256]:
            raise CycleStoppedError(f"{path.name} cannot be gone on from: it was changed")

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
        began: float,
        seconds_sampling: float,
    ) -> None:
        """Train once, and write down what came of it.

        Args:
            plan: the step.
            gathered: what it is trained on.
            training: the process that trains.
            began: performance counter's seconds when the step began.
            seconds_sampling: what its rows took, also while the step before was trained.
        """
        training_began = time.perf_counter()
        receipt = gathered.to_json() | {"adapter": plan.adapter}
        receipt["seconds_sampling"] = seconds_sampling
        if gathered.batch.rows:
            self.progress.phase = "training"
            try:
                receipt |= await self._train(plan, gathered, training)
            except NoSignalError as error:  # this step's rows hold none; the next step's may
                receipt["no_signal"] = error.message
        ended = time.perf_counter()
        receipt |= {"seconds_training": ended - training_began, "seconds": ended - began}
        before = self.weights
        step = CycleStep(
            cycle_id=self.cycle.id, index=plan.index, created_at=utc_now(), receipt=receipt
        )
        await asyncio.to_thread(self.workshop.store.cycles.add_step, step)
        self.done.append(step)
        metrics.note_step(receipt)
        if before not in {None, self.weights}:
            moments_path(before).unlink(missing_ok=True)

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

    def _name_of(self, index: int) -> str:
        """Return the name by which the engine knows a step's weights."""
        return f"{self.name}-step-{index:02d}-{self.cycle.id[-8:]}"

    async def _serve(self, index: int) -> None:
        """Let the engine answer with a step's weights, if it does not yet."""
        name = self._name_of(index)
        if name not in self._served:
            await self.workshop.weights.load_ephemeral(name, self._folder_of(index))
            self._served.add(name)

    def _folder_of(self, index: int) -> Path:
        return self.folder / stage_of(self.cycle.id, index).name

    def _forget_all_but(self, adapter: str | None) -> None:
        """Let the engine unload the steps' weights, as soon as nothing is sampled from them."""
        unused = {name for name in self._served if name != adapter}
        self._served -= unused
        for name in sorted(unused):
            self.workshop.weights.unload(name)
