"""Errors in OpenAI's form, and the requests that vLLM refuses before it computes anything."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from tests.fake_engine.server import FakeEngine


def error(status: int, message: str, kind: str, param: str | None = None) -> web.Response:
    """Return an error response."""
    failure = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": failure}, status=status)


def refusal(engine: "FakeEngine", body: Mapping[str, Any]) -> web.Response | None:
    """Return the refusal of a chat or completion; None when it can be answered."""
    model = body.get("model", engine.base_name)
    limit = body.get("max_tokens")
    if engine.switches.http_error is not None:
        return error(engine.switches.http_error, "ordered by the test", "InternalServerError")
    if model != engine.base_name and model not in engine.adapters:
        aliases = ", ".join([engine.base_name, *engine.adapters])
        message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
        return error(404, message, "NotFoundError", "model")
    if model != engine.base_name and not engine.adapters.use(model):
        return error(500, f"Loading lora {model} failed", "InternalServerError")
    if limit is not None and limit < 1:
        message = f"max_tokens must be at least 1, got {limit}."
        return error(400, message, "BadRequestError", "max_tokens")
    if limit is not None and limit > engine.max_model_len:
        message = f"max_tokens={limit} cannot be greater than max_model_len={engine.max_model_len}."
        return error(400, message, "BadRequestError", "max_tokens")
    return None
