"""HTTP routes of adapter versions and of the pointer. Thin."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from learner import uploads
from learner.evaluation import Evaluation
from learner.pointer import Move, Pointer
from learner.registry import Registry
from memory.errors import AdapterError
from memory.http import MAX_ID, answer, as_json, whole
from memory.store import Store
from memory.types import AdapterVersion
from memory.wire import parse_body, read_instant, read_json

NO_BODY = b"{}"


class Strict(BaseModel):
    """A wire body whose unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


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


def routes(store: Store, registry: Registry, pointer: Pointer, evaluation: Evaluation) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1/adapters")

    @router.get("")
    def list_versions() -> Response:
        live = pointer.live
        return whole([view(version, live) for version in store.versions.all()])

    @router.post("")
    async def import_version(request: Request) -> Response:
        content_type = request.headers.get("content-type", "")
        staging = await asyncio.to_thread(registry.stage)
        reason = await uploads.receive(content_type, request.stream(), staging)
        version = await asyncio.to_thread(registry.adopt, staging, reason=reason)
        return answer(view(version, pointer.live), status=201)

    @router.get("/at")
    def live_at(time: str) -> Response:
        return answer(
            {"time": time, "live": store.versions.live_at(read_instant(time, param="time"))}
        )

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

    @router.get("/verify")
    def verify_all() -> Response:
        return verdict(registry.problems())

    @router.get("/{version_id}")
    def show_version(version_id: str) -> Response:
        version = store.versions.get(version_id)
        episodes = store.versions.episodes_of(version_id)
        changed = store.versions.changed_outcomes(version_id)
        return answer(
            view(version, pointer.live)
            | {"num_episodes": len(episodes), "num_changed_outcomes": len(changed)}
        )

    @router.get("/{version_id}/verify")
    def verify(version_id: str) -> Response:
        try:
            registry.verified_path(version_id)
        except AdapterError as error:
            return verdict([error.message])
        return verdict([])

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
        return as_json(version) | {
            "live": version.id == live,
            "tainted": store.versions.taints().get(version.id),
        }

    def verdict(problems: list[str]) -> Response:
        return answer({"ok": not problems, "problems": problems})

    def moved(move: Move) -> Response:
        return answer({"moved": move.moved, "from": move.from_version, "to": move.to_version})

    return router
