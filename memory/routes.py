"""HTTP routes over the record: episodes and skills. Thin; the stores do the work."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from memory.http import MAX_ID, MAX_PAGE, answer, as_json, page, whole
from memory.store import Store
from memory.types import Call, Skill, SkillPolicy
from memory.wire import parse_body, read_json

SkillId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class SkillChange(BaseModel):
    """The body of ``PATCH /v1/skills/{id}``."""

    model_config = ConfigDict(extra="forbid")

    title: str | None = Field(None, min_length=1, max_length=200)
    policy: SkillPolicy | None = None


def routes(store: Store, missing: Callable[[Skill], list[str]]) -> APIRouter:
    """Return the routes.

    Args:
        store: the record.
        missing: says what a skill lacks before it is learned.
    """
    router = APIRouter(prefix="/v1")

    @router.get("/episodes")
    def list_episodes(
        limit: int = Query(50, ge=1, le=MAX_PAGE),
        after: str | None = None,
        skill: int | None = Query(None, ge=1, le=MAX_ID),
        source: str | None = None,
        session: str | None = None,
    ) -> Response:
        found = store.episodes.page(
            limit=limit + 1, after=after, skill=skill, source=source, session=session
        )
        return page(found, limit, lambda row: str(row["id"]))

    @router.get("/episodes/{episode_id}")
    def show_episode(episode_id: str) -> Response:
        episode = store.episodes.get(episode_id)
        shown = as_json(episode)
        shown["skill"] = shown.pop("skill_id")
        shown["outcome"] = store.episodes.outcome(episode_id)
        shown["calls"] = [call_view(call) for call in store.episodes.calls(episode_id)]
        shown["grades"] = store.episodes.grades(episode_id)
        shown["feedback"] = store.episodes.feedback(episode_id)
        return answer(shown)

    @router.get("/skills")
    def list_skills() -> Response:
        return whole([view(skill) for skill in store.skills.all()])

    @router.get("/skills/{skill_id}")
    def show_skill(skill_id: SkillId) -> Response:
        return answer(view(store.skills.get(skill_id)))

    @router.patch("/skills/{skill_id}")
    async def change_skill(skill_id: SkillId, request: Request) -> Response:
        change = parse_body(SkillChange, read_json(await request.body()))
        changed = await asyncio.to_thread(
            store.skills.update, skill_id, title=change.title, policy=change.policy
        )
        return answer(await asyncio.to_thread(view, changed))

    def view(skill: Skill) -> dict[str, Any]:
        return as_json(skill) | {"missing": missing(skill)}

    return router


def call_view(call: Call) -> dict[str, Any]:
    """Return a call under the contract's names."""
    return {
        "id": call.id,
        "parent": call.parent_id,
        "status": call.status,
        "adapter": call.adapter,
        "session": call.session,
        "created_at": call.created_at,
        "latency_ms": call.latency_ms,
        "request": call.request,
        "message": call.message,
        "prompt_token_ids": call.prompt_token_ids,
        "completion_token_ids": call.completion_token_ids,
        "sampler_logprobs": call.sampler_logprobs,
        "finish_reason": call.finish_reason,
        "usage": call.usage,
        "error": call.error,
        "learnable": call.not_learnable_reason is None,
        "not_learnable_reason": call.not_learnable_reason,
    }
