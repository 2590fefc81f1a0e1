"""``denizen key``: a key for ``[auth]``, and its hash for the settings. Talks to no service."""

import hashlib
import secrets
import sys
from typing import Annotated

import typer

from console.commands import ExitCode, JsonFlag, stop
from console.render import print_record

KEY_BYTES = 32


def key(
    from_stdin: Annotated[
        bool, typer.Option("--stdin", help="Hash the key on standard input instead of a new one.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a key and its hash: callers send the key, denizen.toml holds the hash."""
    given = sys.stdin.read().strip() if from_stdin else f"sk-{secrets.token_urlsafe(KEY_BYTES)}"
    if not given:
        raise stop("there is no key on standard input", ExitCode.FAILED)
    hashed = f"sha256:{hashlib.sha256(given.encode()).hexdigest()}"
    told = {"hash": hashed} if from_stdin else {"key": given, "hash": hashed}
    print_record(told, as_json=as_json)
