"""A wall around this machine: whoever tries to connect to another one fails."""

import socket
from collections.abc import Callable
from typing import Any

LOOPBACK = {"127.0.0.1", "::1", "localhost"}
WAYS_OUT = ("connect", "connect_ex")


def only_loopback(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Return a way to connect that reaches no other machine."""

    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in {socket.AF_INET, socket.AF_INET6} and address[0] not in LOOPBACK:
            raise AssertionError(f"a client tries to reach {address[0]}")
        return connect(self, address)

    return guarded


def wall_in() -> None:
    """Do so for the rest of this process: for programs that run in one of their own."""
    for way in WAYS_OUT:
        setattr(socket.socket, way, only_loopback(getattr(socket.socket, way)))
