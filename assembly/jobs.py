"""What runs beside the answering: jobs on a clock, and work that goes on for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from agent import garbage, metrics
from agent.scheduler import Scheduler
from assembly.parts import Parts
from graders.pairing import RUNS_PER_HOUR

RETENTION_INTERVAL_S = 3_600.0
VECTORS_INTERVAL_S = 300.0
WAL_INTERVAL_S = 10.0
ERASURE_INTERVAL_S = 60.0
TRUST_INTERVAL_S = 3_600.0 / RUNS_PER_HOUR
PROBE_INTERVAL_S = 600.0


def schedule(parts: Parts) -> Scheduler:
    """Return the jobs on a clock, begun."""
    settings, database = parts.settings, parts.store.database

    async def maintain_vectors() -> None:
        await asyncio.to_thread(parts.vectors.maintain)

    async def bound_wal() -> None:
        await asyncio.to_thread(database.bound_wal)
        metrics.WAL_BYTES.set(database.wal_bytes)

    scheduler = Scheduler()
    scheduler.every(settings.learner.check_interval_s, "learn", parts.runner.check)
    scheduler.every(settings.skills.regroup_interval_s, "regroup", parts.regrouping.run)
    scheduler.every(RETENTION_INTERVAL_S, "retention", parts.retention.run)
    scheduler.every(TRUST_INTERVAL_S, "trust", parts.judges.measure)
    scheduler.every(PROBE_INTERVAL_S, "probe", parts.judges.probe)
    scheduler.every(VECTORS_INTERVAL_S, "vectors", maintain_vectors)
    scheduler.every(WAL_INTERVAL_S, "wal", bound_wal)
    scheduler.every(ERASURE_INTERVAL_S, "erasure", parts.eraser.finish)
    scheduler.start()
    return scheduler


def endless(parts: Parts) -> list[Coroutine[Any, Any, None]]:
    """Return the work that goes on for ever."""
    return [parts.intake.grade(), _find_skills(parts), parts.judges.run()]


async def _find_skills(parts: Parts) -> None:
    """Load what finding skills needs before the first requests come, then find them."""
    await asyncio.to_thread(parts.vectors.open)
    await parts.intake.warm_up()
    garbage.keep_what_is()
    await parts.intake.sort()
