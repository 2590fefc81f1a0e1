"""Which adapter version answers: what is loaded in the engines, and what is live.

A version is immutable and has its own name in the engine, so no answer mixes two versions' weights.
Publishing loads and probes a version without moving anything; moving is the change of one variable;
requests that run keep the version they started with (a lease); what nobody uses is unloaded when
room is needed. The slot keeps no record: who moves the pointer writes it down first. It does not
know how adapter files are made or checked.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from agent.policy import PolicyClient
from agent.probe import probe_effect
from memory.errors import AdapterError, ConflictError, DenizenError, NotFoundError
from memory.version_store import BASE, VERSION_NAME

logger = logging.getLogger(__name__)

EPHEMERAL_PATTERN = re.compile(r"denizen-\d{6}-step-\d{2,}(-[0-9a-f]{8})?", re.ASCII)
UNLOAD_TIMEOUT_S = 30.0
REPAIR_PAUSE_S = 5.0
ROOM_TIMEOUT_S = 2.0
"""How long a load waits for the unload that makes room; one takes 10 ms when the engine is idle."""


class AdapterFiles(Protocol):
    """Where verified adapter files are."""

    async def path_of(self, version: str) -> Path:
        """Return the version's folder, its files checked.

        Raises:
            NotFoundError: there is no such version.
            DenizenError: its files are missing or are not what was recorded.
        """


@dataclass(slots=True)
class _Engine:
    """One engine of the slot: may it be asked, and what runs on it."""

    client: PolicyClient
    base_name: str = BASE  # what the engine itself calls the base model
    down_reason: str | None = "its adapters are not loaded yet"
    leases: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to ask ``client`` for ``model`` while the context lasts."""

    model: str  # the version, or what the engine calls its base model
    client: PolicyClient


class AdapterSlot:
    """The versions in the engines, and the pointer to the live one.

    Example:
        ``await slot.publish("denizen-000007")``, record the move, ``slot.move("denizen-000007")``;
        ``async with slot.lease(slot.live) as lease: await lease.client.chat({"model": lease.model,
        …})``.

    Every engine starts as down; ``reload_after_restart`` brings it up. All calls come from one
    event loop.

    Args:
        clients: the engines; every version is loaded into each.
        files: where the adapter files are.
        live: "base" or the version that was live when the service ended.
        previous: what was live before; kept loaded, so that rolling back is a move.
        max_resident: adapters kept loaded; live, previous, leased and ephemeral ones in any case.
    """

    def __init__(
        self,
        clients: Sequence[PolicyClient],
        files: AdapterFiles,
        *,
        live: str = BASE,
        previous: str = BASE,
        max_resident: int = 4,
    ) -> None:
        self._engines = [_Engine(client) for client in clients]
        self._files = files
        self._live = live
        self._previous = previous
        self._max_resident = max_resident
        self._resident: dict[str, Path] = {}  # least recently used first
        self._retired: set[str] = set()  # to be unloaded when their last lease ends
        self._unloads: dict[str, asyncio.Task[None]] = {}
        self._repair: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()  # one load at a time; leases of resident names never wait

    @property
    def live(self) -> str:
        """The version that answers: "base" or ``denizen-000007``."""
        return self._live

    @property
    def resident(self) -> tuple[str, ...]:
        """The loaded names, least recently used first."""
        return tuple(self._resident)

    def down_reasons(self) -> list[str]:
        """Say, for each engine that may not be asked, why."""
        return [
            f"engine {engine.client.base_url}: {engine.down_reason}"
            for engine in self._engines
            if engine.down_reason is not None
        ]

    @asynccontextmanager
    async def lease(self, version: str) -> AsyncIterator[Lease]:
        """Hold a version for one request; load it first when it is known but not resident.

        Raises:
            NotFoundError: there is no such version.
            EngineUnavailableError: no engine is up, or the engine lost the version meanwhile.
            AdapterError: the version cannot be loaded.
        """
        engine = self._least_busy()
        if version != BASE and version not in self._resident:
            async with self._changing:
                await self._load(version, await self._path_of(version))
                engine = self._least_busy()
                engine.leases[version] += 1
        else:
            engine.leases[version] += 1
        self._touch(version)
        try:
            yield Lease(engine.base_name if version == BASE else version, engine.client)
        except EngineRejectedError as error:
            if error.status != 404 or version == BASE:
                raise
            engine.down_reason = f"it restarted and lost {version}"
            self._start_repair()
            raise EngineUnavailableError(
                "the engine restarted; its adapters are loading"
            ) from error
        finally:
            self._release(engine, version)

    async def publish(self, version: str) -> None:
        """Verify, load and probe a version on every engine that is up; the pointer stays.

        Raises:
            NotFoundError: there is no such version.
            AdapterError: an engine refused it, or it has no effect; it is loaded nowhere then.
            EngineUnavailableError: no engine is up.
        """
        async with self._changing:
            self._least_busy()
            was_resident = version in self._resident
            await self._load(version, await self._path_of(version))
            try:
                for engine in self._up():
                    await probe_effect(engine.client, engine.base_name, version)
            except (AdapterError, EngineUnavailableError):
                if not was_resident:
                    self._withdraw(version)
                raise

    def move(self, version: str) -> None:
        """Make a published version (or "base") the live one, at once.

        Raises:
            ConflictError: the version is not loaded: publish it first.
        """
        if version != BASE and version not in self._resident:
            raise ConflictError(f"{version} is not loaded in the engine: publish it first")
        if version != self._live:
            self._previous, self._live = self._live, version
        self._touch(version)
        if self.down_reasons():  # perhaps because the version before could not be loaded
            self._start_repair()

    async def load_ephemeral(self, name: str, path: Path) -> None:
        """Load weights that are no version, such as ``denizen-000007-step-03``, until ``unload``.

        Raises:
            AdapterError: the name is malformed, or an engine refused the files.
        """
        if not EPHEMERAL_PATTERN.fullmatch(name):
            raise AdapterError(
                f"{name!r} is no name for passing weights: denizen-000007-step-03 is"
            )
        async with self._changing:
            await self._load(name, path)

    def unload(self, name: str) -> None:
        """Unload ``name`` in the background, once its last lease has ended.

        What is not loaded is ignored.

        Raises:
            ConflictError: the name is live, or is the version to roll back to.
        """
        if name in {self._live, self._previous}:
            raise ConflictError(f"{name} is live or the version before; it stays loaded")
        if name in self._resident:
            self._withdraw(name)

    def mark_down(self, reason: str) -> None:
        """Answer 503 from now on: the engine process ended. ``reload_after_restart`` ends this."""
        for engine in self._engines:
            engine.down_reason = reason

    async def reload_after_restart(self) -> None:
        """Load what an engine should have and has not, then let it be asked.

        An engine that fails, or cannot get the live version, stays down and says why. To be called
        when the engine came up, and every few seconds for servers that restart on their own: an
        engine that has everything costs one request.
        """
        async with self._changing:
            for version in (self._previous, self._live):
                await self._recall(version)
            for engine in self._engines:
                try:
                    await self._reconcile(engine)
                except DenizenError as error:
                    engine.down_reason = error.message
                    logger.warning("engine %s stays down: %s", engine.client.base_url, error)

    def _withdraw(self, name: str) -> None:
        """Unload ``name`` as soon as nobody uses it."""
        if self._num_leases(name):
            self._retired.add(name)
        else:
            self._drop(name)

    def _start_repair(self) -> None:
        if self._repair is None or self._repair.done():
            self._repair = asyncio.create_task(self._repair_until_up())

    async def _repair_until_up(self) -> None:
        while self.down_reasons():
            await self.reload_after_restart()
            await asyncio.sleep(REPAIR_PAUSE_S if self.down_reasons() else 0.0)

    async def close(self) -> None:
        """Give up the unloads and repairs that still run."""
        tasks = list(self._unloads.values())
        if self._repair is not None:
            tasks.append(self._repair)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _up(self) -> list[_Engine]:
        return [engine for engine in self._engines if engine.down_reason is None]

    def _least_busy(self) -> _Engine:
        up = self._up()
        if not up:
            raise EngineUnavailableError("; ".join(self.down_reasons()) or "there is no engine")
        return min(up, key=lambda engine: engine.leases.total())

    def _num_leases(self, name: str) -> int:
        return sum(engine.leases[name] for engine in self._engines)

    def _touch(self, name: str) -> None:
        if name in self._resident:
            self._resident[name] = self._resident.pop(name)

    def _release(self, engine: _Engine, name: str) -> None:
        engine.leases[name] -= 1
        if not engine.leases[name]:
            del engine.leases[name]
        if name in self._retired and not self._num_leases(name):
            self._drop(name)

    async def _path_of(self, version: str) -> Path:
        if version in self._resident:
            return self._resident[version]
        if not VERSION_NAME.fullmatch(version):
            raise NotFoundError(f"there is no adapter version {version[:100]!r}")
        return await self._files.path_of(version)

    async def _load(self, name: str, path: Path) -> None:
        """Load ``name`` into every engine that is up, or into none; the caller holds the lock."""
        self._retired.discard(name)
        if name in self._resident:
            return
        if name in self._unloads:
            await asyncio.wait({self._unloads[name]}, timeout=UNLOAD_TIMEOUT_S)
        await self._make_room()
        try:
            for engine in self._up():
                await _load_once(engine.client, name, path)
        except (EngineError, EngineRejectedError) as error:
            self._start_unload(name)
            raise AdapterError(f"the engine refused {name}: {error}") from error
        except EngineUnavailableError:
            self._start_unload(name)
            raise
        self._resident[name] = path

    async def _make_room(self) -> None:
        """Unload the least recently used versions until one more fits, as far as they may go."""
        kept = {self._live, self._previous}
        for name in list(self._resident):
            if len(self._resident) < self._max_resident:
                return
            if name in kept or EPHEMERAL_PATTERN.fullmatch(name) or self._num_leases(name):
                continue
            unload = self._drop(name)
            await asyncio.wait({unload}, timeout=ROOM_TIMEOUT_S)

    def _drop(self, name: str) -> asyncio.Task[None]:
        self._retired.discard(name)
        self._resident.pop(name, None)
        return self._start_unload(name)

    def _start_unload(self, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(self._unload_everywhere(name))
        self._unloads[name] = task
        task.add_done_callback(lambda _: self._forget_unload(name, task))
        return task

    def _forget_unload(self, name: str, task: asyncio.Task[None]) -> None:
        if self._unloads.get(name) is task:
            del self._unloads[name]

    async def _unload_everywhere(self, name: str) -> None:
        for engine in self._engines:
            try:
                async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                    await engine.client.unload_adapter(name)
            except EngineRejectedError:
                continue  # it does not have it
            except (EngineError, EngineUnavailableError, TimeoutError) as error:
                logger.warning("%s was not unloaded: %r", name, error)

    async def _recall(self, version: str) -> None:
        """Count live or previous among the resident, as after a start of the service."""
        if version == BASE or version in self._resident:
            return
        try:
            self._resident[version] = await self._files.path_of(version)
        except DenizenError as error:
            logger.error("%s cannot be loaded: %s", version, error)

    async def _reconcile(self, engine: _Engine) -> None:
        """Make the engine have every resident name; with the live one there, it may be asked."""
        served = await engine.client.served()
        engine.base_name = next((one.name for one in served if one.parent is None), BASE)
        loaded = {one.name: one.root for one in served}
        for name, path in list(self._resident.items()):
            if loaded.get(name) == str(path):
                continue
            if name == self._live:
                engine.down_reason = f"loading {name}"
            try:
                await _load_once(engine.client, name, path)
            except (EngineError, EngineRejectedError) as error:
                if name == self._live:
                    raise
                logger.warning("%s is no longer resident: %s", name, error)
                del self._resident[name]
        if self._live != BASE and self._live not in self._resident:
            raise AdapterError(f"the live version {self._live} cannot be loaded: see the log")
        engine.down_reason = None


async def _load_once(client: PolicyClient, name: str, path: Path) -> None:
    """Load ``name``; what the engine has under that name already may be of another life."""
    try:
        await client.load_adapter(name, path)
    except EngineRejectedError:
        if name not in await client.models():
            raise
        await client.unload_adapter(name)
        await client.load_adapter(name, path)
