"""The service as a process: settings read, one home locked, one address, until a signal comes."""

import asyncio
import signal
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import uvloop

import home as house
import settings as configuration
from agent.http_server import listen
from memory.embedding_process import EmbeddingProcess
from service.service import Service
from settings import Settings

SWITCH_INTERVAL_S = 0.0005
"""How long a thread that sorts or grades may keep the interpreter from the one that answers.
Python's own 5 ms is more than an answer takes in all."""


def serve(
    *,
    home: Path | None = None,
    host: str | None = None,
    port: int | None = None,
    engine_urls: list[str] | None = None,
) -> None:
    """Run the service until it is told to stop. Arguments that are given win over the settings.

    Raises:
        ConfigError: a setting is wrong, the port is taken, or another service runs on this home.
    """
    home = house.find(home)
    given: dict[str, dict[str, Any]] = {
        "server": {"host": host, "port": port},
        "engine": {"urls": engine_urls or None},
    }
    overrides = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in given.items()
    }
    settings = configuration.load(home, overrides)
    house.log_to(home, settings.server.log_level, [*settings.auth.all_keys, *settings.teacher.keys])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with house.lock(home), listen(settings.server.host, settings.server.port) as listener:
        uvloop.run(_until_signalled(settings, home, listener))


async def _until_signalled(settings: Settings, home: Path, listener: socket.socket) -> None:
    with closing(EmbeddingProcess()) as embedder:
        service = Service(settings, home, embedder)
        running = asyncio.create_task(service.run(listener))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: service.request_stop() or running.cancel())
        with suppress(asyncio.CancelledError):  # told to stop while it was starting
            await running
