"""The HTTP routes by which a skill's guideline is read, approved and withdrawn."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from memory.errors import NotFoundError
from memory.guidelines import Guidelines
from memory.http import MAX_ID, answer, as_json
from memory.store import Store
from memory.tenants import caller_of
from memory.wire import parse_body, read_json

MAX_GUIDELINE = 8_000
SkillId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class GuidelineBody(BaseModel):
    """The body of ``PUT /v1/skills/{id}/guideline``; an empty text withdraws it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(max_length=MAX_GUIDELINE)
    author: str = Field(default="admin", min_length=1, max_length=100)


def routes(store: Store) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1")
    guidelines = Guidelines(store.database)

    @router.get("/skills/{skill_id}/guideline")
    def show_guideline(request: Request, skill_id: SkillId) -> Response:
        skill = store.skills.get(skill_id)
        if not caller_of(request).sight.sees(skill.tenant):
            raise NotFoundError(f"there is no skill {skill_id}", param="skill")
        return _shown(skill.id)

    @router.put("/skills/{skill_id}/guideline")
    async def set_guideline(request: Request, skill_id: SkillId) -> Response:
        body = parse_body(GuidelineBody, read_json(await request.body()))
        skill = await asyncio.to_thread(store.skills.get, skill_id)
        await asyncio.to_thread(guidelines.set, skill.id, body.text, author=body.author)
        return await asyncio.to_thread(_shown, skill.id)

    def _shown(skill_id: int) -> Response:
        versions = guidelines.versions(skill_id)
        newest = versions[-1] if versions and versions[-1].text else None
        return answer(
            {
                "skill_id": skill_id,
                "version": newest and newest.version,
                "text": newest and newest.text,
                "history": [as_json(row) for row in versions],
            }
        )

    return router
