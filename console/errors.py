"""What can go wrong between the console and the service.

The console imports none of Denizen's packages, so these are its own; they say what a person reads.
"""


class ServiceError(Exception):
    """The service answered with an error, or with something that is no answer of Denizen's.

    Attributes:
        message: the service's own ``error.message``, or what was wrong with the answer.
        status: the HTTP status, or None when there was no whole answer.
        code: ``error.code``, or None.
    """

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class NoServiceError(Exception):
    """Nothing answers at the service's address, or no address is known."""


class MissingTasksError(Exception):
    """The package that the demo's tasks come from is not installed."""
