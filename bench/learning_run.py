"""Learning step by step, and the clock of it.

The steps of a learning cycle, with tasks in a given order and nothing decided at the end: rollouts
with the present weights, rows, a step of the training process, its weights into the engine.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from bench.learning_curves import Checkpoint
from bench.workbench import BASE_WEIGHTS, Weights, Workbench
from learner.curriculum import LearnerConfig
from learner.errors import NoSignalError
from learner.rollouts import Trial, group_of
from learner.rows import RolloutGroup, RowBatch, rows_of, write_rows
from memory.types import TaskSpec

RowsFn = Callable[[list[RolloutGroup]], RowBatch]
"""From the groups of a step to what is trained."""


class LearningRun:
    """``async with LearningRun(…) as run: checkpoint = await run.advance(5)``.

    Args:
        bench: engine, store and training.
        tasks: in the order in which they are tried; when they end they begin again.
        config: group size, tasks a step, temperature, and the trainer's settings.
        start: weights to continue from.
        rows: makes a step's rows; None: those of a learning cycle.

    Attributes:
        receipts: one entry a step: mean reward, share of groups without contrast, seconds.
        weights: what is learned so far.
    """

    def __init__(
        self,
        bench: Workbench,
        tasks: Sequence[TaskSpec],
        config: LearnerConfig,
        *,
        start: Weights = BASE_WEIGHTS,
        rows: RowsFn | None = None,
    ) -> None:
        self._bench = bench
        self._tasks = tasks
        self._config = config
        self._rows = rows or self._own_rows
        self._number = bench.new_run()
        self._folder = bench.folder / f"run-{self._number:02d}"
        self._folder.mkdir()
        self._training = bench.training(config, parent=start.path)
        self._is_training = False
        self._start = start
        self._seconds = 0.0
        self._num_rollouts = 0
        self.weights = start
        self.receipts: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        await self._bench.load(self._start)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_training:
            await self._training.__aexit__(kind, error, traceback)
        if self.weights.path is not None:
            self._bench.slot.unload(self.weights.name)

    @property
    def rollouts_a_step(self) -> int:
        """How many rollouts a step samples."""
        return self._config.tasks_per_step * self._config.group_size

    @property
    def checkpoint(self) -> Checkpoint:
        """The weights as they are, and what they took."""
        return Checkpoint(
            step=len(self.receipts),
            num_rollouts=self._num_rollouts,
            seconds=self._seconds,
            weights=self.weights,
        )

    async def advance(self, num_steps: int) -> Checkpoint:
        """Make steps; return where they led."""
        for _ in range(num_steps):
            began = time.perf_counter()
            if not self._is_training:  # it loads the model while the first rollouts are sampled
                await self._training.__aenter__()
                self._is_training = True
            receipt = await self._step(len(self.receipts) + 1)
            receipt["seconds"] = time.perf_counter() - began
            self._seconds += receipt["seconds"]
            self.receipts.append(receipt)
        return self.checkpoint

    async def _step(self, index: int) -> dict[str, Any]:
        config, began = self._config, time.perf_counter()
        tried = await self._bench.rollouts(
            self._chosen(index),
            self.weights,
            num_samples=config.group_size,
            temperature=config.temperature,
        )
        sampled = time.perf_counter()
        self._num_rollouts += sum(map(len, tried))
        groups = [group_of(trials, group_id=f"{index}-{i}") for i, trials in enumerate(tried)]
        batch = self._rows(groups)
        receipt = _account(tried, batch) | {"seconds_sampling": sampled - began}
        if batch.rows:
            receipt |= await self._train(index, batch)
        return receipt

    def _chosen(self, index: int) -> list[TaskSpec]:
        num = self._config.tasks_per_step
        start = (index - 1) * num
        return [self._tasks[place % len(self._tasks)] for place in range(start, start + num)]

    async def _train(self, index: int, batch: RowBatch) -> dict[str, Any]:
        began = time.perf_counter()
        rows_path, out = self._folder / f"rows-{index:02d}.jsonl", self._folder / f"{index:02d}"
        write_rows(rows_path, batch.rows)
        try:
            receipt = await self._training.step(rows_path, out)
        except NoSignalError as error:
            return {"no_signal": error.message}
        trained = time.perf_counter()
        weights = Weights(name=f"denizen-{self._number:06d}-step-{index:02d}", path=out)
        await self._bench.load(weights, instead_of=self.weights)
        self.weights = weights
        return {
            "trained_tokens": receipt["trained_tokens"],
            "grad_norm": receipt["grad_norm"],
            "seconds_training": trained - began,
            "seconds_swap": time.perf_counter() - trained,
        }

    def _own_rows(self, groups: list[RolloutGroup]) -> RowBatch:
        config = self._config
        return rows_of(groups, baseline=config.baseline, normalize_std=config.normalize_std)


def _account(tried: Sequence[Sequence[Trial]], batch: RowBatch) -> dict[str, Any]:
    rewards = [t.outcome.value for trials in tried for t in trials if t.outcome.value is not None]
    return {
        "reward_mean": statistics.fmean(rewards),
        "groups": batch.num_groups,
        "trained_groups": batch.num_trained_groups,
    }
