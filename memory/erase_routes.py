"""HTTP routes by which an operator erases, and takes the record out as a file. Thin."""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from memory.eraser import Eraser
from memory.erasure_scope import Scope
from memory.export import exported
from memory.http import answer, whole
from memory.store import Store
from memory.tenants import caller_of
from memory.wire import parse_body, read_instant, read_json

ADMIN = "admin"


class EraseBody(BaseModel):
    """The body of ``POST /v1/erase``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    episode: str | None = Field(None, min_length=1, max_length=200)
    """One episode."""
    task: str | None = Field(None, min_length=1, max_length=200)
    """One task, and all practice on it; the episode that it was made of stays, if it was."""
    session: str | None = Field(None, min_length=1, max_length=200)
    """All episodes with calls of this session."""
    user: str | None = Field(None, min_length=1, max_length=1_000)
    """All episodes of this user."""
    tenant: str | None = Field(None, min_length=1, max_length=64)
    """All episodes of this tenant; with a session or user, only that tenant's."""
    dry_run: bool = False
    """Say what would be erased, and erase nothing."""

    @property
    def scope(self) -> Scope:
        """What is to be erased."""
        return Scope(**self.model_dump(exclude={"dry_run"}))


def routes(store: Store, eraser: Eraser) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1")

    @router.delete("/episodes/{episode_id}")
    async def erase_episode(episode_id: str) -> Response:
        return answer(await eraser.erase(Scope(episode=episode_id), actor=ADMIN))

    @router.delete("/tasks/{task_id}")
    async def erase_task(task_id: str) -> Response:
        return answer(await eraser.erase(Scope(task=task_id), actor=ADMIN))

    @router.post("/erase")
    async def erase(request: Request) -> Response:
        body = parse_body(EraseBody, read_json(await request.body()))
        if body.dry_run:
            plan: dict[str, Any] = await asyncio.to_thread(eraser.erasure.plan, body.scope)
            return answer(plan | {"scope": body.scope.kind})
        return answer(await eraser.erase(body.scope, actor=ADMIN))

    @router.get("/erasures")
    def list_erasures() -> Response:
        return whole(eraser.erasure.all())

    @router.get("/export/episodes")
    def export_episodes(
        request: Request,
        since: str | None = None,
        session: str | None = None,
        tenant: str | None = Query(None, max_length=64),
    ) -> Response:
        seen = store.episodes.seen_by(caller_of(request).looking_at(tenant))
        began: datetime | None = None if since is None else read_instant(since, param="since")
        lines: Iterator[bytes] = exported(seen, since=began, session=session)
        return StreamingResponse(lines, media_type="application/jsonl")

    return router
