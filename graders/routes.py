"""The HTTP route by which people say what an answer was worth."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from graders.feedback import read_feedback
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
        body = read_feedback(read_json(await request.body()))
        if body.completion_id is not None:
            episode_id = store.episodes.episode_of_call(body.completion_id)
        else:
            episode_id = store.episodes.get(body.episode_id or "").id
        feedback = Feedback(
            id=new_id("fb"),
            episode_id=episode_id,
            call_id=body.completion_id,
            created_at=utc_now(),
            value=body.score,
            comment=body.comment,
            correction=body.correction,
            source=body.source,
        )
        await store.episodes.add_feedback(feedback)
        on_feedback()
        return answer({"id": feedback.id, "episode_id": episode_id})

    return router
