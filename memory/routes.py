"""HTTP routes over the record: episodes and skills. Thin; the stores do the work."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from memory.errors import NotFoundError
from memory.guideline_routes import MAX_GUIDELINE
from memory.guidelines import Guidelines
from memory.http import MAX_ID, MAX_PAGE, answer, as_json, page, whole
from memory.store import Store
from memory.tenants import caller_of
from memory.types import Call, Skill, SkillPolicy
from memory.wire import parse_body, read_json

MAX_SPLIT = 10_000  # episodes that a person moves out of a skill at once
TRAINED = "trained"  # among the fates of tokens; every other name is a reason
SkillId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class SkillEdit(BaseModel):
    """The body of ``PATCH /v1/skills/{id}``."""

    model_config = ConfigDict(extra="forbid")

    title: str | None = Field(None, min_length=1, max_length=200)
    policy: SkillPolicy | None = None
    guideline: str | None = Field(None, max_length=MAX_GUIDELINE)  # "": withdraw it


class SkillMerge(BaseModel):
    """The body of ``POST /v1/skills/{id}/merge``."""

    model_config = ConfigDict(extra="forbid")

    into: int = Field(ge=1, le=MAX_ID)


class SkillSplit(BaseModel):
    """The body of ``POST /v1/skills/{id}/split``; without a title the episodes' texts give one."""

    model_config = ConfigDict(extra="forbid")

    episode_ids: list[str] = Field(min_length=1, max_length=MAX_SPLIT)
    title: str | None = Field(None, min_length=1, max_length=200)


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
    guidelines = Guidelines(store.database)

    @router.get("/episodes")
    def list_episodes(
        request: Request,
        limit: int = Query(50, ge=1, le=MAX_PAGE),
        after: str | None = None,
        skill: int | None = Query(None, ge=1, le=MAX_ID),
        source: str | None = None,
        session: str | None = None,
        tenant: str | None = Query(None, max_length=64),
    ) -> Response:
        found = store.episodes.seen_by(caller_of(request).looking_at(tenant)).page(
            limit=limit + 1, after=after, skill=skill, source=source, session=session
        )
        return page(found, limit, lambda row: str(row["id"]))

    @router.get("/episodes/{episode_id}")
    def show_episode(request: Request, episode_id: str) -> Response:
        episode = store.episodes.seen_by(caller_of(request).sight).get(episode_id)
        shown = as_json(episode)
        shown["skill"] = shown.pop("skill_id")
        shown["outcome"] = store.episodes.outcome(episode_id)
        calls = store.episodes.calls(episode_id)
        fates = fates_of(calls)
        shown["calls"] = [call_view(call, fates.get(call.id, {})) for call in calls]
        shown["grades"] = store.episodes.grades(episode_id)
        shown["past_grades"] = store.episodes.past_grades(episode_id)
        shown["trained_on"] = store.episodes.trained_on(episode_id)
        shown["feedback"] = store.episodes.feedback(episode_id)
        return answer(shown)

    @router.get("/skills")
    def list_skills(request: Request, tenant: str | None = Query(None, max_length=64)) -> Response:
        sight = caller_of(request).looking_at(tenant)
        return whole([view(skill) for skill in store.skills.all() if sight.sees(skill.tenant)])

    @router.get("/skills/{skill_id}")
    def show_skill(request: Request, skill_id: SkillId) -> Response:
        skill = store.skills.get(skill_id)
        if not caller_of(request).sight.sees(skill.tenant):
            raise NotFoundError(f"there is no skill {skill_id}", param="skill")
        return answer(view(skill) | {"history": store.skills.history(skill.id)})

    @router.post("/skills/{skill_id}/merge")
    async def merge_skill(skill_id: SkillId, request: Request) -> Response:
        body = parse_body(SkillMerge, read_json(await request.body()))
        whole = await asyncio.to_thread(store.skills.merge, skill_id, body.into)
        return answer(await asyncio.to_thread(view, whole))

    @router.post("/skills/{skill_id}/split")
    async def split_skill(skill_id: SkillId, request: Request) -> Response:
        body = parse_body(SkillSplit, read_json(await request.body()))
        part = await asyncio.to_thread(store.skills.split, skill_id, body.episode_ids, body.title)
        return answer(await asyncio.to_thread(view, part), status=201)

    @router.patch("/skills/{skill_id}")
    async def change_skill(skill_id: SkillId, request: Request) -> Response:
        change = parse_body(SkillEdit, read_json(await request.body()))
        changed = await asyncio.to_thread(
            store.skills.update, skill_id, title=change.title, policy=change.policy
        )
        if change.guideline is not None:
            await asyncio.to_thread(guidelines.set, changed.id, change.guideline)
        return answer(await asyncio.to_thread(view, changed))

    def view(skill: Skill) -> dict[str, Any]:
        told = {"missing": missing(skill), "guideline": guidelines.get(skill.id)}
        return as_json(skill) | told

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
        "recalled": call.recalled,
        "learnable": reason is None,
        "not_learnable_reason": reason,
        "token_fates": fate,
    }
