"""All engines together: which may be asked, which one a request goes to, loading into every one.

Requests of one conversation share their beginning, which an engine that saw it before need not
compute again; so they go to one engine, as long as that is not much busier than another.
"""

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from agent.engine_slots import EngineSlots
from agent.errors import EngineUnavailableError
from agent.policy import PolicyClient

BUSIER_FACTOR = 1.5
BUSIER_BY = 4  # requests; a few more or less are no reason to leave a warm cache


class Fleet:
    """The engines."""

    def __init__(self, engines: Sequence[EngineSlots]) -> None:
        self._engines = engines

    def __len__(self) -> int:
        return len(self._engines)

    def __iter__(self) -> Iterator[EngineSlots]:
        return iter(self._engines)

    def of(self, client: PolicyClient) -> EngineSlots:
        """Return the engine behind a client."""
        return next(engine for engine in self._engines if engine.client is client)

    def up(self) -> list[EngineSlots]:
        """Return the engines that answer.

        Raises:
            EngineUnavailableError: none does.
        """
        up = [engine for engine in self._engines if engine.is_up]
        if not up:
            down = (f"engine {one.client.base_url}: {one.down_reason}" for one in self._engines)
            raise EngineUnavailableError("; ".join(down) or "there is no engine")
        return up

    def able(self, version: str) -> list[EngineSlots]:
        """Return the engines that can answer as a version at once."""
        return [engine for engine in self._engines if engine.can_answer_as(version)]

    async def load(self, name: str, path: Path, *, probe: bool) -> None:
        """Load ``name`` into every engine that is up; after an error no more have it than before.

        Raises:
            DenizenError: what the first engine that failed said.
        """
        engines = self.up()
        fresh = [engine for engine in engines if not engine.has(name)]
        held: list[EngineSlots] = []

        async def load(engine: EngineSlots) -> None:
            await engine.load(name, path, probe=probe)
            held.append(engine)  # so that it cannot go while others still load

        try:
            results = await asyncio.gather(*map(load, engines), return_exceptions=True)
        finally:
            for engine in held:
                engine.release(name)
        for failure in filter(None, results):
            for engine in fresh:
                engine.withdraw(name)
            raise failure

    async def close(self) -> None:
        """Give up what runs in the background."""
        for engine in self._engines:
            await engine.close()


def choose(engines: Sequence[EngineSlots], affinity: str | None) -> EngineSlots:
    """Return the conversation's own engine, or the least busy one when that is clearly busier.

    Rendezvous hashing: when an engine goes or comes, only the conversations that were or will be
    its own change their engine.

    Args:
        engines: at least one.
        affinity: names the conversation; None: none.
    """
    idlest = min(engines, key=lambda engine: engine.num_leases)
    if affinity is None:
        return idlest
    own = max(engines, key=lambda engine: _score(affinity, engine.client.base_url))
    limit = BUSIER_FACTOR * idlest.num_leases + BUSIER_BY
    return own if own.num_leases <= limit else idlest


def _score(affinity: str, url: str) -> bytes:
    return blake2b(f"{affinity}\n{url}".encode(), digest_size=8).digest()
