"""The HTTP route by which people say what an answer was worth."""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from graders.feedback import FeedbackBody, read_feedback
from graders.open_webui import read_rating
from memory.episode_store import EpisodeStore
from memory.http import answer
from memory.privacy import Privacy
from memory.store import Store
from memory.tenants import caller_of
from memory.types import Feedback, new_id, utc_now
from memory.wire import read_json


def routes(store: Store, on_feedback: Callable[[], None], privacy: Privacy) -> APIRouter:
    """Return the routes.

    Args:
        store: the record.
        on_feedback: called after each, so that the outcome is worked out again.
        privacy: decides what of a comment and a correction is stored.
    """
    router = APIRouter(prefix="/v1")

    @router.post("/feedback")
    async def give_feedback(request: Request) -> Response:
        body, sight = read_json(await request.body()), caller_of(request).sight
        given = await asyncio.to_thread(understand, body, store.episodes.seen_by(sight))
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

    def understand(body: dict[str, Any], episodes: EpisodeStore) -> Feedback:
        is_rating = "type" in body  # which only Open WebUI's form has
        said = read_rating(body, episodes) if is_rating else read_feedback(body)
        given = Feedback(
            id=new_id("fb"),
            episode_id=episode_of(said, episodes),
            call_id=said.completion_id,
            created_at=utc_now(),
            value=said.score,
            comment=said.comment,
            correction=said.correction,
            source=said.source,
        )
        return privacy.feedback(given)

    def episode_of(said: FeedbackBody, episodes: EpisodeStore) -> str:
        if said.completion_id is not None:
            return episodes.episode_of_call(said.completion_id)
        return episodes.get(said.episode_id or "").id

    return router
