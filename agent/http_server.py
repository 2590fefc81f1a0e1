"""The HTTP server that the service runs: its socket, and uvicorn without its signal handlers."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from memory.errors import ConfigError

GRACE_S = 4
"""For open requests when told to stop; the engine stops after them, within 10 s in all."""

KEEP_ALIVE_S = 75
"""For idle connections: longer than clients keep theirs (httpx 5 s, proxies 60 s), so that none
sends a request into a connection that is just being closed."""


class Server(uvicorn.Server):
    """uvicorn, which by itself would end the process at SIGTERM before the service has stopped."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,  # what it logs goes where the service's log goes
                log_level="warning",
                access_log=False,
                lifespan="off",
                ws="none",
                proxy_headers=False,  # nothing here asks where a request came from
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service."""
        yield

    def request_stop(self) -> None:
        """End soon; asked a second time, without waiting for open requests."""
        self.force_exit = self.should_exit
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that a taken port is found before anything else is started.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sets TCP_NODELAY on what it accepts. Without, Nagle's
    # algorithm and delayed acknowledgements add 40 ms to every answer on a kept connection.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    return listener
