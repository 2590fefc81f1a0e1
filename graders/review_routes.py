"""The HTTP route of the queue for people. Thin. It stands before ``/v1/episodes/{id}``."""

import asyncio
from typing import Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from graders.calibration import TrustConfig
from graders.review import CANDIDATES, rank_for_review
from graders.trust import JudgeTrust
from memory.http import MAX_PAGE, answer
from memory.store import Store
from memory.tenants import Sight, caller_of


def routes(store: Store, trust: JudgeTrust, config: TrustConfig) -> APIRouter:
    """Return the route."""
    router = APIRouter(prefix="/v1")

    @router.get("/episodes/review")
    async def review(request: Request, limit: int = Query(20, ge=1, le=MAX_PAGE)) -> Response:
        return answer(await asyncio.to_thread(queue, caller_of(request).sight, limit))

    def queue(sight: Sight, limit: int) -> dict[str, Any]:
        found = store.judge_evidence.unlabelled(CANDIDATES, sight)
        items = rank_for_review(found, trust, config)
        return {
            "data": [item.to_json() for item in items[:limit]],
            "has_more": len(items) > limit,
            "next": None,
        }

    return router
