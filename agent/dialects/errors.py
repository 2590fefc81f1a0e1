"""What went wrong, in the words of the dialect in which it was asked."""

from typing import Any

from memory.errors import DenizenError

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_body(error: DenizenError) -> dict[str, Any]:
    """Return Anthropic's error body; ``param`` is an addition of this service."""
    other = TYPES[400] if error.status < 500 else "api_error"
    told = {"type": TYPES.get(error.status, other), "message": error.message}
    return {"type": "error", "error": told | {"param": error.param}}


def body_at(path: str, error: DenizenError) -> dict[str, Any]:
    """Return an error's body for a request that is refused before its dialect is asked."""
    speaks_anthropic = path.endswith(("/v1/messages", "/v1/messages/count_tokens"))
    return anthropic_body(error) if speaks_anthropic else error.body()
