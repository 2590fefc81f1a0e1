"""What the service says of itself: why it is not ready, and what ``denizen status`` shows."""

from importlib.metadata import version
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from agent.scheduler import Scheduler
from assembly.parts import Parts
from learner.coverage import Coverage
from learner.curriculum import missing
from memory.http import answer
from memory.tenants import EVERYTHING, Sight, caller_of


class Status:
    """How a service at an address is."""

    def __init__(self, parts: Parts, scheduler: Scheduler, url: str) -> None:
        self._parts = parts
        self._scheduler = scheduler
        self._url = url
        self._coverage = Coverage(parts.store.episodes)

    def show(self, request: Request) -> Response:
        """Answer ``GET /v1/status``; a tenant is told of its own records."""
        caller = caller_of(request)
        if caller.is_admin or not self._parts.settings.auth.tenants:
            return answer(self.whole())
        return answer(self.seen_by(caller.own))

    def not_ready(self) -> list[str]:
        """Say in one line each why the service is not ready; empty when it is."""
        parts = self._parts
        reasons = parts.slot.not_ready()
        if (failure := parts.recorder.failure) is not None:
            reasons.append(f"degraded: answers are not recorded: {failure}")
        if not parts.store.is_writable():
            reasons.append("the database cannot be written")
        return [reason.splitlines()[0] for reason in reasons]

    def whole(self) -> dict[str, Any]:
        """Return what an admin may know."""
        store, runner, scheduler = self._parts.store, self._parts.runner, self._scheduler
        cycles = store.cycles.page(limit=2)
        running = runner.running
        return self.seen_by(EVERYTHING) | {
            "home": str(self._parts.home),
            "previous": store.versions.previous(),
            "engine": self._engine(),
            "reasons": self.not_ready(),
            "tainted": sorted(store.versions.taints()),
            "learnable": self._coverage.report(),
            "judge": self._parts.judges.report(),
            "running": running,
            "progress": runner.progress,
            "next_check_in_s": scheduler.seconds_to_next("learn"),
            "failed_jobs": scheduler.failures,
            "last_cycle": next((c for c in cycles if running is None or c.id != running.id), None),
        }

    def seen_by(self, sight: Sight) -> dict[str, Any]:
        """Return what a tenant may know: whether it is answered, by what, and its own records."""
        store, slot = self._parts.store, self._parts.slot
        skills = [skill for skill in store.skills.all() if sight.sees(skill.tenant)]
        return {
            "version": version("denizen"),
            "url": self._url,
            "live": slot.live,
            "ready": not self.not_ready(),
            "counts": store.episodes.seen_by(sight).counts() | {"tasks": store.tasks.count(sight)},
            "skills": [
                {
                    "id": skill.id,
                    "title": skill.title,
                    "num_new_signal": skill.num_new_signal,
                    "mean_outcome": skill.mean_outcome,
                    "missing": missing(skill, self._parts.settings.learner),
                }
                for skill in skills
            ],
            "judges": self._parts.trust.report(frozenset(skill.id for skill in skills)),
        }

    def _engine(self) -> dict[str, Any]:
        engines = self._parts.slot.engines()
        troubles = [f"engine {one['url']}: {one['reason']}" for one in engines if one["reason"]]
        return {
            "state": "down" if self._parts.slot.not_ready() else "ready",
            "reason": "; ".join(troubles) or None,
            "engines": engines,
        }
