"""The error tree: one base, and the refinements that several packages share.

Each class carries the HTTP status, the ``type`` and the ``code`` of OpenAI's error body, so that an
error raised anywhere reaches a client in one form. Packages add their own subclasses beside what
breaks.
"""


class DenizenError(Exception):
    """Base of every error that Denizen raises on purpose.

    Attributes:
        status: HTTP status that a route answers with.
        type: OpenAI's ``error.type``.
        code: OpenAI's ``error.code``, or None.
        param: the request parameter at fault, or None.
    """

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def body(self) -> dict[str, object]:
        """Return OpenAI's error body."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return {"error": error}


class InvalidRequestError(DenizenError, ValueError):
    """The caller sent something that cannot be served as it is."""

    status = 400
    type = "invalid_request_error"


class AdapterError(InvalidRequestError):
    """An adapter cannot be used: its files are not what they must be, or it does not work.

    The message names what was expected and what was found.
    """

    code = "adapter_error"


class AuthenticationError(DenizenError, PermissionError):
    """No key, or a key that is not known."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class ForbiddenError(DenizenError, PermissionError):
    """A known key that may not do this."""

    status = 403
    type = "permission_error"


class NotFoundError(DenizenError, LookupError):
    """The named thing does not exist."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ConflictError(DenizenError):
    """The request was right once, but the state has moved on; nothing was changed."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class TooLargeError(DenizenError, ValueError):
    """The body is larger than the service reads."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class UnavailableError(DenizenError):
    """Something that is needed is down for now; ``retry_after_s`` says when to ask again."""

    status = 503
    type = "server_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 5) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ConfigError(DenizenError, ValueError):
    """A setting is unknown, malformed, or contradicts another."""


class StoreError(DenizenError):
    """The database could not be read or written."""

    code = "store_error"
