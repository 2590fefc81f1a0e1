"""The next step's rollouts, sampled while this step is trained.

Sources write down what they sample, and answer with it when they are asked for the same step again;
so what is sampled ahead is only asked for here, and read when the step's turn comes. It does not
know which weights sample: the plan says so.
"""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from learner.sources import RowSource, StepPlan


class Prefetch:
    """``async with Prefetch(sources) as ahead: ahead.begin(plan); …; await ahead.end(plan)``.

    When the block ends, however it ends, so does what is being sampled.

    Args:
        sources: those that sample; asked one after another, as in a step's own turn.
    """

    def __init__(self, sources: Sequence[RowSource]) -> None:
        self._sources = sources
        self._plan: StepPlan | None = None
        self._task: asyncio.Task[float] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def begin(self, plan: StepPlan) -> asyncio.Task[float]:
        """Begin to sample what a step needs; nothing else may be being sampled."""
        self._plan, self._task = plan, asyncio.create_task(self._sample(plan))
        return self._task

    async def end(self, plan: StepPlan) -> float:
        """Wait until a step is sampled, by the weights of this plan; begin where nobody has.

        Returns:
            How many seconds that took.

        Raises:
            DenizenError: a source could not sample.
        """
        task = self._task or self.begin(plan)
        assert self._plan == plan, "another step, or by other weights, is being sampled"
        seconds = await task
        self._task = None
        return seconds

    async def _sample(self, plan: StepPlan) -> float:
        began = time.perf_counter()
        for source in self._sources:
            await source.gather(plan)
        return time.perf_counter() - began
