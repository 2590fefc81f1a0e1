"""HTTP routes of answering and of operation: the dialects, models, health, readiness, metrics."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.types import ASGIApp, Receive, Scope, Send

from agent.dialects.chat import Chat
from agent.dialects.completions import Completions
from agent.dialects.dialect import Dialect
from agent.dialects.messages import Messages
from agent.dialects.responses import Responses
from agent.gateway import Gateway
from agent.model_names import ModelNames
from agent.recorder import Recorder
from memory.errors import DenizenError, InvalidRequestError
from memory.http import answer, error_answer
from memory.wire import read_json


class Answering:
    """Answers completions in every dialect, and passes on what asks for something else.

    A bare ASGI application in front of the others: what FastAPI and Starlette put around a route
    costs a tenth of a whole answer, and each chunk of a stream would go through it.
    """

    def __init__(self, gateway: Gateway, recorder: Recorder, otherwise: ASGIApp) -> None:
        self._gateway = gateway
        self._recorder = recorder
        self._otherwise = otherwise
        self._dialects: dict[str, Dialect] = {
            "v1/chat/completions": Chat(),
            "v1/completions": Completions(),
            "v1/responses": Responses(),
            "v1/messages": Messages(),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        session, dialect = self._asked(scope) if scope["type"] == "http" else (None, None)
        if dialect is None:
            if scope["type"] == "http" and scope["path"].startswith("/v1/"):
                await self._recorder.settled()  # who was answered may ask for the record of it
            await self._otherwise(scope, receive, send)
        elif scope["method"] != "POST":
            refused = InvalidRequestError(f"{scope['path']} is asked by POST")
            await answer(refused.body(), 405)(scope, receive, send)
        else:
            scope["path_params"] = {"session": session}
            answered = await self._gateway.answer(Request(scope, receive), dialect)
            await answered(scope, receive, send)

    def _asked(self, scope: Scope) -> tuple[str | None, Dialect | None]:
        """Return the session that a path names, if it does, and the dialect that it asks for."""
        path: str = scope["path"][1:]
        if not path.startswith("s/"):
            return None, self._dialects.get(path)
        session, _, path = path[2:].partition("/")
        return session, self._dialects.get(path) if session else None


def routes(gateway: Gateway, names: ModelNames, not_ready: Callable[[], list[str]]) -> APIRouter:
    """Return the routes beside those that answer.

    Args:
        gateway: counts tokens.
        names: the models that can be asked for.
        not_ready: the reasons why the service is not ready; empty when it is.
    """
    router, messages = APIRouter(), Messages()

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
