"""Brings engines back to what they should have: the live version, then the one before.

Each engine is mended by itself, so one that stays broken delays no other. It does not know how an
engine is found to be well or ill.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from agent.engine_slots import EngineSlots
from agent.errors import EngineError
from memory.errors import DenizenError
from memory.version_store import BASE

logger = logging.getLogger(__name__)

REPAIR_PAUSE_S = 5.0
"""Between two attempts: each one reads and hashes the adapter's files."""


class Repairs:
    """The attempts that run, one an engine.

    Args:
        wanted: the live version and the one before, as they are just now.
        path_of: where a version's verified files are.
    """

    def __init__(
        self,
        wanted: Callable[[], tuple[str, str]],
        path_of: Callable[[str], Awaitable[Path]],
    ) -> None:
        self._wanted = wanted
        self._path_of = path_of
        self._running: dict[EngineSlots, asyncio.Task[None]] = {}
        self._reasons: dict[EngineSlots, str] = {}

    def reason(self, engine: EngineSlots) -> str | None:
        """Return why the last attempt on the engine failed; None when it did not."""
        return self._reasons.get(engine)

    def start(self, engine: EngineSlots) -> None:
        """Try, until it is done or stopped, to mend the engine."""
        self._start(engine, tried=asyncio.Event())

    async def restore(self, engine: EngineSlots) -> None:
        """Do the same for an engine that answers again; return after the first attempt.

        Where it answered already and attempts run, because it lacks something, they go on.
        """
        if not engine.is_up:
            self.stop(engine)
        tried = asyncio.Event()
        if self._start(engine, tried=tried):
            await tried.wait()

    def stop(self, engine: EngineSlots) -> None:
        """Give up, because somebody else knows better when to try again."""
        if (task := self._running.pop(engine, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Give up all attempts."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, engine: EngineSlots, *, tried: asyncio.Event) -> bool:
        running = self._running.get(engine)
        if running is not None and not running.done():
            return False
        task = asyncio.create_task(self._until_whole(engine, tried))
        self._running[engine] = task
        task.add_done_callback(lambda _: self._end(engine, task, tried))
        return True

    def _end(self, engine: EngineSlots, task: "asyncio.Task[None]", tried: asyncio.Event) -> None:
        tried.set()
        if self._running.get(engine) is task:
            del self._running[engine]

    async def _until_whole(self, engine: EngineSlots, tried: asyncio.Event) -> None:
        while True:
            life = engine.life
            try:
                if await self._mend(engine):
                    return
            except Exception as error:  # a loop that ended would leave the engine down for good
                logger.exception("mending engine %s failed", engine.client.base_url)
                self._failed(engine, EngineError(f"{type(error).__name__}: {error}"))
            tried.set()
            if not engine.is_up or engine.life == life:  # else it restarted meanwhile
                await asyncio.sleep(REPAIR_PAUSE_S)

    async def _mend(self, engine: EngineSlots) -> bool:
        """Look at the engine and load what is missing; say whether it has the live version."""
        was_up, life = engine.is_up, engine.life
        try:
            has_lost = await engine.look()
        except DenizenError as error:
            if engine.life == life:
                engine.mark_down(error.message)
            return self._failed(engine, error)
        try:
            while (live := self._wanted()[0]) != BASE and not engine.has(live):
                await self._load(engine, live)
        except DenizenError as error:
            return self._failed(engine, error)
        self._reasons.pop(engine, None)
        if has_lost or not was_up:
            await self._load_previous(engine)
        return engine.can_answer_as(self._wanted()[0])

    async def _load_previous(self, engine: EngineSlots) -> None:
        """Load the version before, if nothing has to go for it."""
        previous = self._wanted()[1]
        if previous == BASE or engine.has(previous) or not engine.has_room_for(previous):
            return
        try:
            await self._load(engine, previous)
        except DenizenError as error:
            logger.warning("%s is not kept ready to roll back to: %s", previous, error)

    async def _load(self, engine: EngineSlots, version: str) -> None:
        await engine.load(version, await self._path_of(version), probe=True)
        engine.release(version)

    def _failed(self, engine: EngineSlots, error: DenizenError) -> bool:
        if self._reasons.get(engine) != error.message:
            logger.error("engine %s cannot answer: %s", engine.client.base_url, error.message)
        self._reasons[engine] = error.message
        return False
