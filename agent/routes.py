"""HTTP routes of answering and of operation: the dialects, models, health, readiness, metrics."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agent.dialects.chat import Chat
from agent.dialects.completions import Completions
from agent.dialects.dialect import Dialect
from agent.dialects.messages import Messages
from agent.dialects.responses import Responses
from agent.gateway import Gateway
from agent.model_names import ModelNames
from memory.errors import DenizenError
from memory.http import answer, error_answer
from memory.wire import read_json


class Answering:
    """Answers in one dialect, as a bare ASGI application.

    Starlette puts two layers around a function, through which every chunk of a stream would go.
    """

    def __init__(self, gateway: Gateway, dialect: Dialect) -> None:
        self._gateway = gateway
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        answered = await self._gateway.answer(Request(scope, receive), self._dialect)
        await answered(scope, receive, send)


def routes(gateway: Gateway, names: ModelNames, not_ready: Callable[[], list[str]]) -> APIRouter:
    """Return the routes.

    Args:
        gateway: answers completions.
        names: the models that can be asked for.
        not_ready: the reasons why the service is not ready; empty when it is.
    """
    router = APIRouter()

    def add(path: str, dialect: Dialect) -> None:
        for prefix in ("/v1", "/s/{session}/v1"):
            app = Answering(gateway, dialect)
            router.routes.append(Route(prefix + path, app, methods=["POST"]))

    messages = Messages()
    add("/chat/completions", Chat())
    add("/completions", Completions())
    add("/responses", Responses())
    add("/messages", messages)

    @router.post("/v1/messages/count_tokens")
    @router.post("/s/{session}/v1/messages/count_tokens")
    async def count_tokens(request: Request) -> Response:
        try:
            model, prompt = messages.count(read_json(await request.body()))
            return answer({"input_tokens": await gateway.count_tokens(model, prompt)})
        except DenizenError as error:
            return error_answer(error, messages.error(error))

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
