"""Which adapter version answers: the pointer to the live one, and the leases of requests.

A version is immutable and has its own name in the engines, so no answer mixes weights of two.
Publishing loads and proves a version without moving anything; moving is the change of one variable;
requests that run keep the version they started with (a lease). That an engine answers and that it
has the live version are two facts: without the second it still answers as base or as another
version, and a person can still roll back. The slot keeps no record: who moves the pointer writes it
down first. It does not know how adapter files are made or checked.
"""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent.engine_slots import EngineSlots, Keep
from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from agent.fleet import Fleet, choose
from agent.policy import PolicyClient
from agent.repair import Repairs
from memory.errors import AdapterError, ConflictError, NotFoundError
from memory.version_store import BASE, VERSION_NAME

EPHEMERAL_PATTERN = re.compile(r"denizen-\d{6}-step-\d{2,}(-[0-9a-f]{8})?", re.ASCII)


class AdapterFiles(Protocol):
    """Where verified adapter files are."""

    async def path_of(self, version: str) -> Path:
        """Return the version's folder, its files checked.

        Raises:
            NotFoundError: there is no such version.
            DenizenError: its files are missing or are not what was recorded.
        """


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to ask ``client`` for ``model`` while the context lasts."""

    model: str  # the version, or what the engine calls its base model
    client: PolicyClient
    cache_salt: str

    def addressed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request as it is sent to the engine.

        vLLM's prefix cache knows an adapter by name and folder, and an engine that outlives its
        Denizen may have known other weights by these; the salt keeps the two apart.
        """
        return {**body, "model": self.model, "cache_salt": self.cache_salt}


class AdapterSlot:
    """The versions in the engines, and the pointer to the live one.

    Example:
        ``await slot.publish("denizen-000007")``, record the move, ``slot.move("denizen-000007")``;
        ``async with slot.lease(slot.live) as lease: await
        lease.client.chat(lease.addressed({"messages": …}))``.

    Every engine starts as down; ``restore`` brings it up. All calls come from one event loop.

    Args:
        clients: the engines; what goes live is loaded into each.
        files: where the adapter files are.
        live: "base" or the version that was live when the service ended.
        previous: what was live before; kept loaded as long as its place is not needed.
        max_resident: adapters in one engine at most. Two are enough to answer while the next
            version is loaded, three to learn as well: the live one, the weights in practice, and
            those of the next step. With one more, rolling back costs no load.
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
        self._engines = Fleet(
            [EngineSlots(one, max_resident=max_resident, keep=self._keep) for one in clients]
        )
        self._files = files
        self._cache_salt = secrets.token_hex(8)
        self._live = live
        self._previous = previous
        self._ephemeral: dict[str, Path] = {}
        self._repairs = Repairs(lambda: (self._live, self._previous), self._path_of)

    @property
    def live(self) -> str:
        """The version that answers: "base" or ``denizen-000007``."""
        return self._live

    @property
    def resident(self) -> tuple[str, ...]:
        """The names that are loaded in any engine, each engine's least recently used first."""
        return tuple(dict.fromkeys(name for one in self._engines for name in one.resident))

    @property
    def is_fleet(self) -> bool:
        """Whether there are several engines, among which a conversation has its own."""
        return len(self._engines) > 1

    def not_ready(self) -> list[str]:
        """Say, when no engine can answer as the live version, of each why; else nothing."""
        if self._engines.able(self._live):
            return []
        reasons = ((engine.client.base_url, self._fault(engine)) for engine in self._engines)
        return [f"engine {url}: {reason}" for url, reason in reasons]

    def engines(self) -> list[dict[str, Any]]:
        """Describe each engine for people who watch."""
        return [
            {
                "url": engine.client.base_url,
                "is_up": engine.is_up,
                "reason": self._fault(engine),
                "resident": engine.resident,
                "num_requests": engine.num_leases,
            }
            for engine in self._engines
        ]

    @asynccontextmanager
    async def lease(
        self, version: str, *, affinity: Callable[[], str] | None = None
    ) -> AsyncIterator[Lease]:
        """Hold a version for one request; load it first when it is known but not resident.

        A request for the live version never waits: where no engine has it, it is refused.

        Args:
            version: a version, "base", or a name given to ``load_ephemeral``.
            affinity: names the conversation, where there are several engines; its requests go to
                one of them if possible.

        Raises:
            NotFoundError: there is no such version.
            EngineUnavailableError: no engine has it or can get it, or the engine lost it meanwhile.
            NoRoomError: it is not loaded, and no place for it became free in time.
            AdapterError: it cannot be loaded, or has no effect.
        """
        engine = await self._hold(version, affinity)
        life = engine.life
        try:
            model = engine.base_name if version == BASE else version
            yield Lease(model, engine.client, self._cache_salt)
        except EngineRejectedError as error:
            if error.status != 404 or version == BASE:
                raise
            if engine.life == life:  # this request is the first to notice
                engine.doubt()
                self._repairs.start(engine)
            raise EngineUnavailableError(
                f"the engine restarted and lost {version}; its adapters are loading"
            ) from error
        except (EngineError, EngineUnavailableError):  # it may be gone: look at once
            if engine.life == life:
                self._repairs.start(engine)
            raise
        finally:
            engine.release(version)

    async def publish(self, version: str) -> None:
        """Verify, load and prove a version on every engine that is up; the pointer stays.

        Where it is proven since the engine started, this costs nothing.

        Raises:
            NotFoundError: there is no such version.
            AdapterError: an engine refused it, or it has no effect; it is loaded nowhere then.
            NoRoomError: no place for it became free in time.
            EngineUnavailableError: no engine is up, or one went away.
        """
        if not all(engine.has(version) for engine in self._engines.up()):
            await self._engines.load(version, await self._path_of(version), probe=True)

    def is_published(self, version: str) -> bool:
        """Say whether an engine can answer as the version just now; "base" needs none."""
        return version == BASE or bool(self._engines.able(version))

    def move(self, version: str, *, previous: str | None = None) -> None:
        """Make a published version (or "base") the live one, at once.

        Args:
            version: what answers from now on.
            previous: what a rollback would go to; None: what was live until now.

        Raises:
            ConflictError: the version is not loaded: publish it first.
        """
        if not self.is_published(version):
            raise ConflictError(f"{version} is not loaded in an engine: publish it first")
        if version != self._live:
            self._previous, self._live = previous or self._live, version
        for engine in self._engines:  # one may have come up since
            if engine.is_up and not engine.can_answer_as(version):
                self._repairs.start(engine)

    async def load_ephemeral(self, name: str, path: Path) -> None:
        """Load weights that are no version, such as ``denizen-000007-step-03``, until ``unload``.

        They are not proven: one step may change less than the probe can see.

        Raises:
            AdapterError: the name is malformed, or an engine refused the files.
            NoRoomError: no place for them became free in time.
        """
        if not EPHEMERAL_PATTERN.fullmatch(name):
            raise AdapterError(
                f"{name!r} is no name for passing weights: denizen-000007-step-03 is"
            )
        self._ephemeral[name] = path
        try:
            await self._engines.load(name, path, probe=False)
        except BaseException:
            self._ephemeral.pop(name, None)
            raise

    def unload(self, name: str) -> None:
        """Unload ``name`` in the background, once its last lease has ended.

        What is not loaded is ignored.

        Raises:
            ConflictError: the name is live, or is the version to roll back to.
        """
        if name in {self._live, self._previous}:
            raise ConflictError(f"{name} is live or the version before; it stays loaded")
        self._ephemeral.pop(name, None)
        for engine in self._engines:
            engine.withdraw(name)

    def mark_down(self, client: PolicyClient, reason: str) -> None:
        """Ask nothing of an engine that ended or hangs, until ``restore``."""
        engine = self._engines.of(client)
        self._repairs.stop(engine)
        engine.mark_down(reason)

    async def restore(self, client: PolicyClient) -> None:
        """Look at an engine that seems well, and load what it should have and has not.

        To be called when it came up, and every few seconds for servers that restart on their own:
        where nothing is missing it costs one request. It is tried again by itself when it failed.
        """
        await self._repairs.restore(self._engines.of(client))

    async def reload_after_restart(self) -> None:
        """Restore every engine."""
        await asyncio.gather(*(self.restore(engine.client) for engine in self._engines))

    async def close(self) -> None:
        """Give up the unloads and repairs that still run."""
        await self._repairs.close()
        await self._engines.close()

    def _keep(self, name: str) -> Keep:
        if name == self._live or name in self._ephemeral:
            return Keep.ALWAYS
        return Keep.IF_POSSIBLE if name == self._previous else Keep.ON_DEMAND

    def _fault(self, engine: EngineSlots) -> str | None:
        """Say why the engine cannot answer as the live version; None when it can."""
        if engine.can_answer_as(self._live):
            return None
        loading = f"the live version {self._live} is being loaded"
        return engine.down_reason or self._repairs.reason(engine) or loading

    async def _hold(self, version: str, affinity: Callable[[], str] | None) -> EngineSlots:
        """Choose an engine that has the version, or let one load it, and hold it there."""
        if able := self._engines.able(version):
            engine = _choose(able, affinity)
            engine.hold(version)
            return engine
        if version in {self._live, BASE}:
            raise EngineUnavailableError("; ".join(self.not_ready()))
        path = await self._path_of(version)
        engine = _choose(self._engines.up(), affinity)
        await engine.load(version, path, probe=version not in self._ephemeral)
        return engine

    async def _path_of(self, name: str) -> Path:
        if name in self._ephemeral:
            return self._ephemeral[name]
        if not VERSION_NAME.fullmatch(name):
            raise NotFoundError(f"there is no adapter version {name[:100]!r}")
        return await self._files.path_of(name)


def _choose(engines: Sequence[EngineSlots], affinity: Callable[[], str] | None) -> EngineSlots:
    if len(engines) == 1:  # whatever the conversation is called
        return engines[0]
    return choose(engines, None if affinity is None else affinity())
