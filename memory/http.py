"""Answers over HTTP in one form: records as JSON, lists as pages, every error in OpenAI's body."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from memory.errors import DenizenError, InvalidRequestError, UnavailableError

MAX_PAGE = 500
MAX_ID = 2**63 - 1  # SQLite's largest integer


def answer(content: Any, status: int = 200) -> Response:
    """Return records as JSON; dataclasses, enums and instants are written as they read."""
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


def as_json(record: Any) -> dict[str, Any]:
    """Return a record as the JSON object that a client sees, to be added to."""
    shown: dict[str, Any] = orjson.loads(orjson.dumps(record))
    return shown


def whole(data: Sequence[Any]) -> Response:
    """Return a list that is short enough for one page."""
    return answer({"data": data, "has_more": False, "next": None})


def page(found: Sequence[Any], limit: int, id_of: Callable[[Any], str]) -> Response:
    """Return one page of a list that was read with one row more than asked for."""
    data = list(found[:limit])
    has_more = len(found) > limit
    following = id_of(data[-1]) if has_more else None
    return answer({"data": data, "has_more": has_more, "next": following})


def answer_errors(app: FastAPI) -> None:
    """Let every error of the application be answered in OpenAI's form."""
    app.add_exception_handler(DenizenError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(Exception, _answer_unexpected)


def error_answer(error: DenizenError, body: Mapping[str, Any] | None = None) -> Response:
    """Return an error as the answer that a client sees; ``body`` says it in another form."""
    response = answer(error.body() if body is None else body, error.status)
    if isinstance(error, UnavailableError):
        response.headers["retry-after"] = str(error.retry_after_s)
    return response


async def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, DenizenError)
    return error_answer(error)


def unexpected_error() -> DenizenError:
    """Return what a client learns of an error in the program: that it was not its fault."""
    return DenizenError("an internal error; the service's log says more")


async def _answer_unexpected(_: Request, error: Exception) -> Response:
    return answer(unexpected_error().body(), 500)  # Starlette logs the traceback


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refused = InvalidRequestError(f"{request.method} {request.url.path}: {error.detail}")
    return answer(refused.body(), error.status_code)


async def _answer_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1])
    refused = InvalidRequestError(f"{param}: {first['msg']}", param=param)
    return answer(refused.body(), refused.status)
