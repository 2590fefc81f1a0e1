"""HTTP routes of learning cycles. Thin."""

from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from learner.runner import CycleRunner
from memory.errors import ConflictError, InvalidRequestError
from memory.http import MAX_ID, MAX_PAGE, answer, as_json, page
from memory.store import Store
from memory.types import Cycle, SkillPolicy
from memory.wire import parse_body, read_json

NO_BODY = b"{}"


class CycleBody(BaseModel):
    """``POST /v1/cycles``; without a skill, every skill that has training tasks.

    Where there is none, every skill with graded episodes of work that cannot be replayed.
    """

    model_config = ConfigDict(extra="forbid")

    skill: int | None = Field(None, ge=1, le=MAX_ID)


def routes(store: Store, runner: CycleRunner) -> APIRouter:
    """Return the routes of learning cycles."""
    router = APIRouter(prefix="/v1")

    @router.post("/cycles")
    async def start_cycle(request: Request) -> Response:
        body = parse_body(CycleBody, read_json(await request.body() or NO_BODY))
        if body.skill is not None:
            if (policy := store.skills.get(body.skill).policy) is not SkillPolicy.LEARN:
                raise ConflictError(f"skill {body.skill} is {policy}; it is not learned from")
            skills = [body.skill]
        else:
            known = [s for s in store.skills.all() if s.policy is SkillPolicy.LEARN]
            skills = [s.id for s in known if s.num_train_tasks]
            skills = skills or [s.id for s in known if s.num_live_graded]
        if not skills:
            raise InvalidRequestError(
                "there is no skill with training tasks or graded episodes to learn from"
            )
        return answer(runner.start(skills, reason="asked for by an admin"), status=202)

    @router.get("/cycles")
    def list_cycles(
        limit: int = Query(50, ge=1, le=MAX_PAGE), after: str | None = None
    ) -> Response:
        found = store.cycles.page(limit=limit + 1, after=after)
        return page(found, limit, lambda cycle: str(cycle.id))

    @router.get("/cycles/{cycle_id}")
    def show_cycle(cycle_id: str) -> Response:
        shown = view(store.cycles.get(cycle_id))
        candidate = shown["candidate"]
        changed = store.versions.changed_outcomes(candidate) if candidate else []
        shown["num_changed_outcomes"] = len(changed)  # of what it taught, since
        shown["steps"] = [
            {"index": step.index, "receipt": step.receipt} for step in store.cycles.steps(cycle_id)
        ]
        return answer(shown)

    def view(cycle: Cycle) -> dict[str, Any]:
        shown = as_json(cycle)
        progress = runner.progress
        if runner.running and runner.running.id == cycle.id and progress:
            shown["progress"] = progress
        return shown

    return router
