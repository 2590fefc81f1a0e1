"""The HTTP routes by which an admin reads and writes what judges score by."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from graders.rubrics import default_rubric
from memory.errors import ForbiddenError
from memory.http import MAX_ID, answer, as_json
from memory.rubric_store import RubricStore
from memory.store import Store
from memory.tenants import caller_of
from memory.wire import parse_body, read_json

MAX_RUBRIC = 8_000
SkillId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]


class RubricBody(BaseModel):
    """The body of ``PUT /v1/skills/{id}/rubric``; an empty text brings the default one back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str = Field(max_length=MAX_RUBRIC)
    author: str = Field(default="admin", min_length=1, max_length=100)


def routes(store: Store) -> APIRouter:
    """Return the routes."""
    router = APIRouter(prefix="/v1")
    rubrics = RubricStore(store.database)

    @router.get("/skills/{skill_id}/rubric")
    def show_rubric(request: Request, skill_id: SkillId) -> Response:
        if not caller_of(request).is_admin:  # who knows the rubric can write for it
            raise ForbiddenError("this needs an admin key")
        return _shown(skill_id)

    @router.put("/skills/{skill_id}/rubric")
    async def set_rubric(request: Request, skill_id: SkillId) -> Response:
        body = parse_body(RubricBody, read_json(await request.body()))
        skill = await asyncio.to_thread(store.skills.get, skill_id)
        await asyncio.to_thread(rubrics.add, skill.id, body.text, author=body.author)
        return await asyncio.to_thread(_shown, skill.id)

    def _shown(skill_id: int) -> Response:
        skill = store.skills.get(skill_id)
        versions = rubrics.versions(skill.id)
        newest = versions[-1] if versions else None
        default = default_rubric(has_reference=False)
        is_default = newest is None or not newest.text
        return answer(
            {
                "skill_id": skill.id,
                "version": default.version if is_default else newest and newest.version,
                "text": default.text if is_default else newest and newest.text,
                "is_default": is_default,
                "history": [as_json(row) for row in versions],
            }
        )

    return router
