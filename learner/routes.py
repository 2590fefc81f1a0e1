"""HTTP routes of learning: tasks, cycles, and adapter versions. Thin."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from learner import tasks as task_specs
from learner.evaluation import Evaluation
from learner.pointer import Move, Pointer
from learner.registry import Registry
from learner.runner import CycleRunner
from learner.tasks import TasksConfig
from memory.errors import AdapterError, ConflictError, InvalidRequestError
from memory.http import MAX_ID, MAX_PAGE, answer, as_json, page, whole
from memory.store import Store
from memory.types import AdapterVersion, Cycle, SkillPolicy, Split, TaskSpec
from memory.wire import parse_body, read_json

NO_BODY = b"{}"


class Strict(BaseModel):
    """A wire body whose unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class CycleBody(Strict):
    """``POST /v1/cycles``; without a skill, every skill that has training tasks."""

    skill: int | None = Field(None, ge=1, le=MAX_ID)


class PromoteBody(Strict):
    """``POST /v1/adapters/{id}/promote``."""

    force: bool = False
    reason: str | None = Field(None, max_length=2_000)


class ReviewBody(Strict):
    """``POST /v1/adapters/{id}/approve`` and ``…/reject``."""

    sha256: str | None = None
    reason: str | None = Field(None, max_length=2_000)


class CompareBody(Strict):
    """``POST /v1/adapters/compare``: two versions ("base" among them) on held-out tasks."""

    before: str
    after: str
    skill: int | None = Field(None, ge=1, le=MAX_ID)


class RollbackBody(Strict):
    """``POST /v1/adapters/rollback``."""

    to: str | None = None
    reason: str = Field("asked for by an admin", min_length=1, max_length=2_000)


def task_routes(store: Store, config: TasksConfig, on_tasks: Callable[[], None]) -> APIRouter:
    """Return the routes of task specs; ``on_tasks`` is called when new ones wait for a skill."""
    router = APIRouter(prefix="/v1")

    @router.post("/tasks")
    async def add_tasks(request: Request) -> Response:
        body = read_json(await request.body())
        found = await asyncio.to_thread(task_specs.from_body, body, config=config)
        num_new = await asyncio.to_thread(store.tasks.add, found)
        on_tasks()
        return answer(import_report(found, num_new))

    @router.get("/tasks")
    def list_tasks(
        limit: int = Query(50, ge=1, le=MAX_PAGE),
        after: str | None = None,
        skill: int | None = Query(None, ge=1, le=MAX_ID),
    ) -> Response:
        found = store.tasks.page(limit=limit + 1, after=after, skill=skill)
        return page(found, limit, lambda row: str(row["id"]))

    return router


def instant(text: str) -> datetime:
    """Read an ISO 8601 instant; without an offset it is UTC.

    Raises:
        InvalidRequestError: it is none.
    """
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"time: {text[:40]!r} is no ISO 8601 instant", param="time"
        ) from error
    return read.replace(tzinfo=read.tzinfo or UTC).astimezone(UTC)


def import_report(tasks: list[TaskSpec], num_new: int) -> dict[str, int]:
    """Say what became of an import."""
    heldout = sum(task.split is Split.HELDOUT for task in tasks)
    return {
        "imported": num_new,
        "known": len(tasks) - num_new,
        "train": len(tasks) - heldout,
        "heldout": heldout,
    }


def cycle_routes(store: Store, runner: CycleRunner) -> APIRouter:
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
            known = store.skills.all()
            skills = [s.id for s in known if s.num_train_tasks and s.policy is SkillPolicy.LEARN]
        if not skills:
            raise InvalidRequestError("there is no skill with training tasks to learn from")
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


def adapter_routes(
    store: Store, registry: Registry, pointer: Pointer, evaluation: Evaluation
) -> APIRouter:
    """Return the routes of adapter versions and of the pointer."""
    router = APIRouter(prefix="/v1/adapters")

    @router.get("")
    def list_versions() -> Response:
        live = pointer.live
        return whole([view(version, live) for version in store.versions.all()])

    @router.get("/at")
    def live_at(time: str) -> Response:
        return answer({"time": time, "live": store.versions.live_at(instant(time))})

    @router.get("/moves")
    def list_moves() -> Response:
        return whole(store.versions.moves())

    @router.post("/rollback")
    async def roll_back(request: Request) -> Response:
        body = parse_body(RollbackBody, read_json(await request.body() or NO_BODY))
        return moved(await pointer.rollback(actor="admin", reason=body.reason, to=body.to))

    @router.post("/compare")
    async def compare(request: Request) -> Response:
        body = parse_body(CompareBody, read_json(await request.body()))
        skills = None if body.skill is None else [body.skill]
        return answer((await evaluation.compare(body.before, body.after, skills)).to_json())

    @router.get("/{version_id}")
    def show_version(version_id: str) -> Response:
        version = store.versions.get(version_id)
        episodes = store.versions.episodes_of(version_id)
        return answer(view(version, pointer.live) | {"num_episodes": len(episodes)})

    @router.get("/{version_id}/verify")
    def verify(version_id: str) -> Response:
        try:
            registry.verified_path(version_id)
        except AdapterError as error:
            return answer({"ok": False, "problems": [error.message]})
        return answer({"ok": True, "problems": []})

    @router.post("/{version_id}/promote")
    async def promote(version_id: str, request: Request) -> Response:
        body = parse_body(PromoteBody, read_json(await request.body() or NO_BODY))
        return moved(
            await pointer.promote(version_id, actor="admin", reason=body.reason, force=body.force)
        )

    @router.post("/{version_id}/approve")
    async def approve(version_id: str, request: Request) -> Response:
        body = parse_body(ReviewBody, read_json(await request.body() or NO_BODY))
        reason = body.reason or "approved"
        return moved(
            await pointer.approve(version_id, actor="admin", reason=reason, sha256=body.sha256)
        )

    @router.post("/{version_id}/reject")
    async def reject(version_id: str, request: Request) -> Response:
        body = parse_body(ReviewBody, read_json(await request.body() or NO_BODY))
        await pointer.reject(version_id, reason=body.reason or "rejected", sha256=body.sha256)
        return answer(view(store.versions.get(version_id), pointer.live))

    def view(version: AdapterVersion, live: str) -> dict[str, Any]:
        return as_json(version) | {"live": version.id == live}

    def moved(move: Move) -> Response:
        return answer({"moved": move.moved, "from": move.from_version, "to": move.to_version})

    return router
