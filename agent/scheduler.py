"""Named jobs on a clock: one instance of each, missed runs merged, failures kept.

It does not know what the jobs do.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-untyped]

from memory.types import utc_now

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFailure:
    """The last time a job failed."""

    at: datetime
    error: str


class Scheduler:
    """Runs coroutines at intervals."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone="UTC")
        self.failures: dict[str, JobFailure] = {}

    def every(self, seconds: float, name: str, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job again and again; a run that is late is run once, never skipped."""

        async def guarded() -> None:
            try:
                await job()
            except Exception as error:  # the next run has to happen
                log.exception("job %s failed", name)
                self.failures[name] = JobFailure(at=utc_now(), error=str(error))
            else:
                self.failures.pop(name, None)

        self._scheduler.add_job(
            guarded,
            "interval",
            seconds=seconds,
            id=name,
            max_instances=1,
            coalesce=True,
            misfire_grace_time=None,
        )

    def start(self) -> None:
        """Begin; needs a running event loop."""
        self._scheduler.start()

    def stop(self) -> None:
        """End without waiting for a job that runs."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def seconds_to_next(self, name: str) -> float | None:
        """Return when a job runs next, or None when it is not scheduled."""
        job = self._scheduler.get_job(name)
        if job is None or job.next_run_time is None:
            return None
        next_run_at: datetime = job.next_run_time
        return max(0.0, (next_run_at - utc_now()).total_seconds())
