"""The service: its parts are joined, started and stopped in order, in one process over one home.

``serve`` reads the settings, locks the home, takes the address and runs until a signal comes.
"""

import asyncio
import logging
import signal
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import uvloop
from starlette.types import ASGIApp

import home as house
import settings as configuration
from agent import garbage
from agent.base_model import base_digest
from agent.engines import Engines
from agent.http_server import Server, listen
from agent.policy import PolicyClient
from agent.special_tokens import special_tokens
from assembly import jobs
from assembly.application import application
from assembly.parts import Parts
from assembly.status import Status
from graders import catalog, functions
from graders.unit_tests import unit_tests
from learner.fit import Fit
from memory.embedding_process import EmbeddingProcess
from memory.errors import ConfigError, DenizenError
from memory.fences import ControlTokens
from memory.skills import Embedder
from memory.store import Store
from settings import Settings

__all__ = ["ConfigError", "DenizenError", "Service", "serve"]

log = logging.getLogger("denizen")

SWITCH_INTERVAL_S = 0.0005
"""How long a thread that sorts or grades may keep the interpreter from the one that answers.
Python's own 5 ms is more than an answer takes in all."""


class Service:
    """Everything that runs in one process over one home folder."""

    def __init__(self, settings: Settings, home: Path, embedder: Embedder) -> None:
        self.settings = settings
        self.home = home
        self.url = ""
        self._embedder = embedder
        self._server: Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._told_reason: str | None = None  # why an engine is down, as said last

    async def run(self, listener: socket.socket) -> None:
        """Serve on a bound socket until told to stop by a signal or ``request_stop``."""
        host, port = listener.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._server = Server(await self.start())
        try:
            with house.note(self.home, self.url), garbage.looked_for_rarely():
                _say(f"Denizen listens on {self.url}; its home is {self.home}")
                await self._server.serve(sockets=[listener])
        finally:
            await self.stop()

    def request_stop(self) -> bool:
        """End ``run`` soon; False while it is still starting."""
        if self._server is None:
            return False
        self._server.request_stop()
        return True

    async def start(self) -> ASGIApp:
        """Join the parts and return the application; the engine goes on starting behind it."""
        self._install_checks()
        self.engines = await Engines.find(self.settings.engine, self.home, _say)
        self.parts = await self._join()
        await asyncio.to_thread(self.parts.trust.refresh)
        await self.parts.eraser.finish()
        self.parts.runner.adopt()
        self.scheduler = jobs.schedule(self.parts)
        watching = self.engines.watch(self._on_engine_ready, self._on_engine_down)
        for work in (*jobs.endless(self.parts), watching):
            task = asyncio.create_task(work)
            task.add_done_callback(self._on_task_ended)
            self._tasks.append(task)
        return application(self.parts, Status(self.parts, self.scheduler, self.url))

    async def stop(self) -> None:
        """Stop what runs, in the reverse order, and write down what is to be gone on with."""
        self.scheduler.stop()
        await self.parts.runner.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.parts.close()

    def _install_checks(self) -> None:
        config = self.settings.graders
        code = unit_tests(allow_without_namespaces=config.run_code_without_namespaces)
        catalog.install([code, *functions.load(config)])

    async def _join(self) -> Parts:
        """Open the store, read what is to be known of the base model, and make the parts."""
        config, model = self.settings, self.engines.model
        store = Store(self.home / "denizen.db", config.memory, learn_from=config.privacy.learn_from)
        digest = await asyncio.to_thread(base_digest, model)
        fit = await asyncio.to_thread(
            Fit.of, model, base_digest=digest, max_rank=config.engine.max_lora_rank
        )
        tokens = ControlTokens(await asyncio.to_thread(special_tokens, model))
        parts = Parts(
            config,
            self.home,
            self._embedder,
            store=store,
            engines=self.engines,
            fit=fit,
            control_tokens=tokens,
        )
        for path in parts.registry.swept:
            log.warning("%s was left unfinished by a crash, or is of another database", path.name)
        return parts

    async def _on_engine_ready(self, client: PolicyClient) -> None:
        slot = self.parts.slot
        was_ready = not slot.not_ready()
        await slot.restore(client)
        if not was_ready and not slot.not_ready():
            _say(f"Denizen is ready at {self.url} (live: {slot.live})")
            self._told_reason = None
        self.parts.runner.take_up()

    async def _on_engine_down(self, client: PolicyClient, reason: str) -> None:
        told = f"engine {client.base_url}: {reason}"
        if told != self._told_reason:
            print(told, file=sys.stderr, flush=True)
            log.error("%s", told)
        self._told_reason = told
        self.parts.slot.mark_down(client, reason)

    def _on_task_ended(self, task: "asyncio.Task[None]") -> None:
        """Stop the service when a part that must run for ever has ended by an error."""
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("the service stops: a part of it failed", exc_info=error)
            self.request_stop()


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


def _say(line: str) -> None:
    """Tell the person at the terminal, and the log."""
    print(line, flush=True)
    log.info(line)
