"""The HTTP route by which people say what an answer was worth."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from graders.feedback import FeedbackBody, read_feedback
from graders.open_webui import read_rating
from memory.http import answer
from memory.store import Store
from memory.types import Feedback, new_id, utc_now
from memory.wire import read_json


def routes(store: Store, on_feedback: Callable[[], None]) -> APIRouter:
    """Return the routes.

    Args:
        store: the record.
        on_feedback: called after each, so that the outcome is worked out again.
    """
    router = APIRouter(prefix="/v1")

    @router.post("/feedback")
    async def give_feedback(request: Request) -> Response:
        given = await asyncio.to_thread(understand, read_json(await request.body()))
        kept = await store.episodes.add_feedback(given)
        is_new = kept.id == given.id
        if is_new:
            on_feedback()
        return answer(
            {
                "id": kept.id,
                "episode_id": kept.episode_id,
                "completion_id": kept.call_id,
                "value": kept.value,
                "changed": is_new,
            }
        )

    def understand(body: dict[str, Any]) -> Feedback:
        is_rating = "type" in body  # which only Open WebUI's form has
        said = read_rating(body, store.episodes) if is_rating else read_feedback(body)
        return Feedback(
            id=new_id("fb"),
            episode_id=episode_of(said),
            call_id=said.completion_id,
            created_at=utc_now(),
            value=said.score,
            comment=said.comment,
            correction=said.correction,
            source=said.source,
        )

    def episode_of(said: FeedbackBody) -> str:
        if said.completion_id is not None:
            return store.episodes.episode_of_call(said.completion_id)
        return store.episodes.get(said.episode_id or "").id

    return router
