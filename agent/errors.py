"""What can break between Denizen and its engine. Each error says what to do about it."""

from memory.errors import DenizenError, UnavailableError


class EngineError(DenizenError):
    """The engine failed; the same request may succeed when tried again."""

    status = 502
    code = "engine_error"


class EngineUnavailableError(UnavailableError):
    """The engine does not answer: it is starting, restarting, or gone."""

    code = "engine_unavailable"


class EngineRejectedError(DenizenError, ValueError):
    """The engine refused the request itself (a 4xx): the caller has to change it.

    Attributes:
        status: the engine's own status.
    """

    type = "invalid_request_error"

    def __init__(
        self, message: str, *, status: int, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status


class EngineStartError(DenizenError, RuntimeError):
    """The engine did not come up; the message holds its last log lines."""

    code = "engine_start_failed"


class BaseModelError(DenizenError, RuntimeError):
    """The base model's folder is missing, broken, or could not be made."""

    code = "base_model_error"
