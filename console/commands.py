"""What all commands share: options of one form, exit codes, and the way to the service.

Knows no single command. Imports nothing heavy: the HTTP client is loaded by the first command that
needs it, so that ``denizen --help`` stays quick.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from console.errors import NoServiceError, ServiceError

if TYPE_CHECKING:
    from console.client import ServiceClient

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the service's JSON as it is.")]
Limit = Annotated[int, typer.Option(min=1, max=500, help="Rows on one page.")]
After = Annotated[str | None, typer.Option(help="Continue a list after this id.")]
Reason = Annotated[str | None, typer.Option(help="Why; kept with the decision.")]

DEFAULT_LIMIT = 20
"""Rows that fit a terminal."""


class ExitCode(IntEnum):
    """What a shell sees."""

    OK = 0
    FAILED = 1  # the service refused, or what was asked for did not succeed
    USAGE = 2  # a wrong option, argument or setting; also Typer's own code
    NO_SERVICE = 3


EXIT_CODES = (
    "Exit codes: 0 done; 1 refused or failed; 2 wrong option, argument or setting; 3 no service."
)


class ServiceGroup(TyperGroup):
    """Turns what goes wrong at the service into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except NoServiceError as error:
            raise stop(str(error), ExitCode.NO_SERVICE) from error
        except ServiceError as error:
            raise stop(error.message, ExitCode.FAILED) from error


def stop(message: str, code: ExitCode) -> typer.Exit:
    """Print ``message`` to stderr and return the exception that ends the command."""
    typer.echo(f"denizen: {message}", err=True)
    return typer.Exit(code)


def connect() -> "ServiceClient":
    """Return a client of the running service.

    Raises:
        NoServiceError: no address is known.
    """
    from console.client import ServiceClient

    return ServiceClient.from_environment()
