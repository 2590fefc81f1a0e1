"""Reads what comes over the wire, and turns the first fault into OpenAI's error.

Knows nothing of what the bodies mean: each package declares its own models, frozen and with unknown
keys rejected.
"""

from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from memory.errors import InvalidRequestError

Body = TypeVar("Body", bound=BaseModel)


def read_json(raw: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InvalidRequestError: No JSON, nested too deeply, or no object.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is no valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequestError("the body must be a JSON object")
    try:
        orjson.dumps(body)  # what can be read is not always what can be kept and passed on
    except TypeError as error:
        raise InvalidRequestError("the body is nested too deeply") from error
    return body


def read_instant(text: str, *, param: str) -> datetime:
    """Read an ISO 8601 date or instant; without an offset it is UTC.

    Raises:
        InvalidRequestError: It is none; names ``param``.
    """
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"{param}: {text[:40]!r} is no ISO 8601 instant", param=param
        ) from error
    return read.replace(tzinfo=read.tzinfo or UTC).astimezone(UTC)


def parse_body(model: type[Body], body: object, *, where: str = "") -> Body:
    """Read ``body`` as ``model``.

    Args:
        model: The wire model.
        body: What JSON gave: usually a dict.
        where: A prefix that tells the caller which part was read, such as ``"line 3: "``.

    Raises:
        InvalidRequestError: The first fault in words, with ``param`` naming the key at fault.
    """
    try:
        return model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or None
        known = ", ".join(model.model_fields)
        hint = f"; known keys: {known}" if first["type"] == "extra_forbidden" else ""
        # pydantic words a custom ValueError as "Value error, …"; the caller needs the rest.
        reason = first["msg"].removeprefix("Value error, ")
        at = f"{param}: " if param else ""
        raise InvalidRequestError(f"{where}{at}{reason}{hint}", param=param) from error
