"""When to learn: one cycle at a time, started by enough new signal or by a person."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from learner.curriculum import LearnerConfig, missing, missing_work
from learner.cycle import LearningCycle
from learner.workshop import Progress, Workshop
from memory.errors import ConflictError
from memory.store import Store
from memory.types import Cycle, CycleState, new_id, utc_now

log = logging.getLogger(__name__)
FIRST_PAUSE_S = 60.0  # after a failed cycle, doubled with each further one
MAX_PAUSE_S = 3600.0


class CycleRunner:
    """Starts cycles and knows the one that runs."""

    def __init__(self, workshop: Workshop, *, is_engine_ready: Callable[[], bool]) -> None:
        self._workshop = workshop
        self._is_engine_ready = is_engine_ready
        self._cycle: LearningCycle | None = None
        self._task: asyncio.Task[Cycle] | None = None
        self._num_failed = 0  # in a row
        self._not_before = 0.0  # loop time before which no cycle starts by itself

    @property
    def store(self) -> Store:
        """Where cycles are kept."""
        return self._workshop.store

    @property
    def config(self) -> LearnerConfig:
        """The settings that say when a skill is ready."""
        return self._workshop.learner

    @property
    def running(self) -> Cycle | None:
        """The cycle that runs now."""
        return self._cycle.cycle if self._cycle else None

    @property
    def progress(self) -> Progress | None:
        """How far the running cycle is."""
        return self._cycle.progress if self._cycle else None

    async def check(self) -> None:
        """Start a cycle when a skill has enough new signal; the scheduler calls this.

        Every other skill with enough tasks takes part: one adapter serves them all, so what one
        skill gains must not cost another, and the gate has to see both.
        """
        if self._cycle is not None or not self.config.enabled or not self._is_engine_ready():
            return
        if asyncio.get_running_loop().time() < self._not_before:
            return
        skills = await asyncio.to_thread(self.store.skills.all)
        ready = [skill for skill in skills if not missing(skill, self.config)]
        if ready:
            # By id: a title is made of users' words, and this line stands in the log.
            signal = ", ".join(f"skill {skill.id}: {skill.num_new_signal} new" for skill in ready)
            taking_part = [skill.id for skill in skills if not missing_work(skill, self.config)]
            self.start(taking_part, reason=f"enough new signal ({signal})")

    def start(self, skill_ids: Sequence[int], *, reason: str) -> Cycle:
        """Start a cycle and return it at once.

        Raises:
            ConflictError: one runs already.
            NotFoundError: a skill does not exist.
        """
        if self._cycle is not None:
            raise ConflictError(f"cycle {self._cycle.cycle.id} runs already")
        for skill_id in skill_ids:
            self.store.skills.get(skill_id)
        cycle = Cycle(
            id=new_id("cycle"),
            created_at=utc_now(),
            state=CycleState.RUNNING,
            start_version=self._workshop.pointer.live,
            skill_ids=tuple(skill_ids),
            reason=reason,
            receipt={"max_steps": self.config.steps_per_cycle},
        )
        self.store.cycles.start(cycle)
        self._cycle = LearningCycle(cycle, self._workshop)
        self._task = asyncio.create_task(self._cycle.run())
        self._task.add_done_callback(self._ended)
        log.info("cycle %s starts from %s: %s", cycle.id, cycle.start_version, reason)
        return cycle

    def _ended(self, task: "asyncio.Task[Cycle]") -> None:
        self._cycle = self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("a cycle could not be closed", exc_info=error)
        failed = error is not None or task.result().state is CycleState.FAILED
        self._num_failed = self._num_failed + 1 if failed else 0
        if failed:
            pause_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._num_failed - 1))
            self._not_before = asyncio.get_running_loop().time() + pause_s
            log.warning("no cycle starts by itself for %.0f s", pause_s)
        else:
            ended = task.result()
            log.info("cycle %s ended: %s (%s)", ended.id, ended.state, ended.end_reason)

    async def stop(self) -> None:
        """Interrupt the running cycle and wait until it has written that down."""
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
