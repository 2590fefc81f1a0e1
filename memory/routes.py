"""HTTP routes over the record: episodes and skills. Thin; the stores do the work."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from memory.http import MAX_ID, MAX_PAGE, answer, as_json, page, whole
from memory.store import Store
from memory.types import Call, Skill, SkillPolicy
from memory.wire import parse_body, read_json

TRAINED = "trained"  # among the fates of tokens; every other name is a reason
SkillId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class SkillChange(BaseModel):
    """The body of ``PATCH /v1/skills/{id}``."""

    model_config = ConfigDict(extra="forbid")

    title: str | None = Field(None, min_length=1, max_length=200)
    policy: SkillPolicy | None = None


Fates: TypeAlias = Callable[[Sequence[Call]], Mapping[str, Mapping[str, int]]]
"""Says, for each call of an episode, how many sampled tokens are trained, or why they are not."""


def routes(store: Store, missing: Callable[[Skill], list[str]], fates_of: Fates) -> APIRouter:
    """Return the routes.

    Args:
        store: the record.
        missing: says what a skill lacks before it is learned.
        fates_of: says what becomes of the sampled tokens of an episode's calls.
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
        calls = store.episodes.calls(episode_id)
        fates = fates_of(calls)
        shown["calls"] = [call_view(call, fates.get(call.id, {})) for call in calls]
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


def call_view(call: Call, fate: Mapping[str, int]) -> dict[str, Any]:
    """Return a call under the contract's names.

    Args:
        call: the record.
        fate: how many of its sampled tokens are trained, or are not for a reason.
    """
    lost = max((reason for reason in fate if reason != TRAINED), key=fate.__getitem__, default=None)
    reason = None if TRAINED in fate else call.not_learnable_reason or lost
    return {
        "id": call.id,
        "parent": call.parent_id,
        "edge": call.edge,
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
        "learnable": reason is None,
        "not_learnable_reason": reason,
        "token_fates": fate,
    }
