"""When to learn: one cycle at a time, started by enough new signal or by a person.

A cycle that ran when its service ended is gone on with before any other starts.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence

from learner.curriculum import LearnerConfig, missing, taking_part
from learner.cycle import LearningCycle
from learner.workshop import WHY_ERASED, Progress, Workshop
from memory.errors import ConflictError, NotFoundError
from memory.store import Store
from memory.types import Cycle, CycleState, VersionStatus, new_id, utc_now
from memory.version_store import BASE

log = logging.getLogger(__name__)
FIRST_PAUSE_S = 60.0  # after a failed cycle, doubled with each further one
MAX_PAUSE_S = 3600.0
MAX_DEATHS = 3
"""After so many services that were killed while they ran a cycle, or by it, it has failed."""
WAITING = "waiting for the engine, to go on"


class CycleRunner:
    """Starts cycles and knows the one that runs."""

    def __init__(self, workshop: Workshop, *, is_engine_ready: Callable[[], bool]) -> None:
        self._workshop = workshop
        self._is_engine_ready = is_engine_ready
        self._cycle: LearningCycle | None = None  # runs, or waits to be gone on with
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
        """The cycle that runs now, or waits to be gone on with."""
        return self._cycle.cycle if self._cycle else None

    @property
    def progress(self) -> Progress | None:
        """How far the running cycle is."""
        return self._cycle.progress if self._cycle else None

    def adopt(self) -> None:
        """Look at what ran when the last service ended: keep it to go on with, or end it.

        Called once, before anything starts. What ended cycles left in files is deleted.
        """
        for cycle in self.store.cycles.running():
            found = LearningCycle(cycle, self._workshop, Progress(phase=WAITING))
            if cycle.num_deaths >= MAX_DEATHS and not cycle.was_stopped:
                found.end(
                    CycleState.FAILED,
                    f"{cycle.num_deaths + 1} services were killed while they ran the cycle; it is "
                    "not tried again",
                )
            elif (why_not := self._why_not_go_on(cycle)) is not None:
                found.end(
                    CycleState.INTERRUPTED,
                    f"the service ended while the cycle ran, and it cannot go on: {why_not}; the "
                    "signal that it started from counts for the next cycle",
                )
            else:
                self._cycle = found
        work_dir = self._workshop.work_dir
        for path in work_dir.glob("*"):
            if self._cycle is None or path.name != self._cycle.cycle.id:
                shutil.rmtree(path, ignore_errors=True)
        for rows in work_dir.glob("*/*.jsonl"):  # words as tokens, which an erasure could not find
            rows.unlink()

    def _why_not_go_on(self, cycle: Cycle) -> str | None:
        """Say why a cycle would not come to where it would have come; None when it would."""
        versions, start = self.store.versions, cycle.start_version
        if self._cycle is not None:
            return f"{self._cycle.cycle.id} is newer"
        if cycle.base_digest != self._workshop.base_digest:
            return "the base model is another one now"
        if cycle.settings_sha256 != self.config.sha256:
            return "the settings of [learner] are others now"
        try:
            if start != BASE and versions.get(start).status is VersionStatus.TAINTED:
                return f"{start}, which it learned on from, is tainted"
        except NotFoundError:
            return f"{start}, which it learned on from, is gone"
        if self.store.cycles.is_hit_by_erasure(cycle.id):
            return WHY_ERASED
        if num_lost := self.store.cycles.num_lost_tasks(cycle.id):
            return f"{num_lost} of its tasks are gone"
        return None

    def take_up(self) -> None:
        """Go on with the cycle that waits, where there is one and the engine answers."""
        waiting = self._cycle
        if waiting is None or self._task is not None or not self._is_engine_ready():
            return
        cycle = self.store.cycles.take_up(waiting.cycle.id)
        self._run(LearningCycle(cycle, self._workshop))
        log.info("cycle %s is gone on with, for the %d. time", cycle.id, cycle.num_resumes)

    async def let_go(self, episode_ids: Sequence[str]) -> None:
        """Stop the cycle for good where it works with episodes that are erased."""
        running = self._cycle
        if running is None:
            return
        uses = self.store.cycles.uses
        is_used = await asyncio.to_thread(uses, running.cycle.id, episode_ids)
        if is_used and self._cycle is running:
            running.why_stopped = WHY_ERASED
            if self._task is None:
                running.end(CycleState.INTERRUPTED, WHY_ERASED)
                self._cycle = None
            await self.stop()

    async def check(self) -> None:
        """Start a cycle when a skill has enough new signal; the scheduler calls this.

        A cycle that another skill has started may have others take part.
        """
        self.take_up()
        if self._cycle is not None or not self.config.enabled or not self._is_engine_ready():
            return
        if asyncio.get_running_loop().time() < self._not_before:
            return
        skills = await asyncio.to_thread(self.store.skills.all)
        ready = [skill for skill in skills if not missing(skill, self.config)]
        if ready:
            # By id: a title is made of users' words, and this line stands in the log.
            signal = ", ".join(f"skill {skill.id}: {skill.num_new_signal} new" for skill in ready)
            self.start(
                taking_part(skills, ready, self.config), reason=f"enough new signal ({signal})"
            )

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
            base_digest=self._workshop.base_digest,
            settings_sha256=self.config.sha256,
        )
        self.store.cycles.start(cycle)
        self._run(LearningCycle(cycle, self._workshop))
        log.info("cycle %s starts from %s: %s", cycle.id, cycle.start_version, reason)
        return cycle

    def _run(self, cycle: LearningCycle) -> None:
        self._cycle = cycle
        self._task = asyncio.create_task(cycle.run())
        self._task.add_done_callback(self._ended)

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
        """Leave the running cycle to the next service, and wait until that is written down."""
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
