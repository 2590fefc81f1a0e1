"""HTTP routes of answering and of operation: chat, models, health, readiness, metrics."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from agent.gateway import Gateway
from agent.model_names import ModelNames
from memory.http import answer


def routes(gateway: Gateway, names: ModelNames, not_ready: Callable[[], list[str]]) -> APIRouter:
    """Return the routes.

    Args:
        gateway: answers chat completions.
        names: the models that can be asked for.
        not_ready: the reasons why the service is not ready; empty when it is.
    """
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await gateway.chat(request)

    @router.post("/s/{session}/v1/chat/completions")
    async def chat_in_session(session: str, request: Request) -> Response:
        return await gateway.chat(request, session)

    @router.get("/v1/models")
    @router.get("/s/{session}/v1/models")
    def list_models() -> Response:
        return answer({"object": "list", "data": names.list()})

    @router.get("/health")
    def health() -> Response:
        return answer({"status": "ok"})

    @router.get("/ready")
    def ready() -> Response:
        reasons = not_ready()
        status = 503 if reasons else 200
        return answer({"ready": not reasons, "reasons": reasons}, status)

    @router.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return router
