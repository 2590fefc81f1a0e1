"""Engines that run elsewhere, by URL: noticing, for each by itself, when it answers and when not.

The counterpart of ``agent.supervisor`` for servers that are not ours to start. It does not know
which adapter is live; who needs to act when an engine comes or goes passes two callbacks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agent.errors import EngineError, EngineUnavailableError
from agent.policy import PolicyClient
from memory.errors import ConfigError, DenizenError

POLL_S = 2.0
MAX_MISSES = 2
"""Health checks in a row without an answer, each of up to ``HEALTH_TIMEOUT_S``, before an engine
counts as down: a busy one may miss one."""
PROGRESS_INTERVAL_S = 6.0
PROGRESS_TIMEOUT_S = 16.0
MAX_STALLS = 2
"""Looks in a row without a token moving, after which an engine hangs: found within 60 s. One such
look may be a long prompt on a slow machine."""

OnReady = Callable[[PolicyClient], Awaitable[None]]
OnDown = Callable[[PolicyClient, str], Awaitable[None]]


async def watch(clients: Sequence[PolicyClient], on_ready: OnReady, on_down: OnDown) -> None:
    """Look at each engine again and again, until cancelled.

    ``on_ready(client)`` is awaited after every look at an engine that is well. A server that
    restarted between two looks answers as before but has lost its adapters; so it puts right what
    is missing each time and does nothing where all is well. ``on_down(client, reason)`` is awaited
    once when an engine does not answer any more, or answers its health check and computes nothing.
    """
    async with asyncio.TaskGroup() as group:
        for client in clients:
            one = _Watch(client, on_ready, on_down)
            group.create_task(one.poll())
            group.create_task(one.follow_progress())


@dataclass(slots=True)
class _Watch:
    """One engine and what was seen of it."""

    client: PolicyClient
    on_ready: OnReady
    on_down: OnDown
    num_misses: int = 0
    num_stalls: int = 0

    async def poll(self) -> None:
        """Look whether it answers."""
        while True:
            if not await self.client.health():
                self.num_misses += 1
                if self.num_misses == MAX_MISSES:
                    self.num_stalls = 0  # what answers next is another process
                    await self.on_down(self.client, "it does not answer")
            else:
                self.num_misses = 0
                if self.num_stalls < MAX_STALLS:
                    await self.on_ready(self.client)
            await asyncio.sleep(POLL_S)

    async def follow_progress(self) -> None:
        """Look whether tokens come, which the health check does not show."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            if not await self._stalls():
                self.num_stalls = 0
            elif await self.client.health():
                self.num_stalls += 1
                if self.num_stalls == MAX_STALLS:
                    reason = "it answers its health check but computes nothing"
                    await self.on_down(self.client, reason)
                    await self.client.close()  # what is under way there would wait for ever

    async def _stalls(self) -> bool:
        """Say whether no token came in all of the time given; an error is an answer."""
        try:
            base = next(model.name for model in await self.client.served() if model.parent is None)
        except (DenizenError, StopIteration):
            return False
        began = time.monotonic()
        moves = await self.client.makes_progress(base, PROGRESS_TIMEOUT_S)
        return not moves and time.monotonic() - began >= PROGRESS_TIMEOUT_S


async def base_root(clients: Sequence[PolicyClient], timeout_s: float) -> str:
    """Wait for any of the engines and return the folder or hub name of its base model.

    Raises:
        EngineUnavailableError: none answered in time.
        ConfigError: it does not say.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        for client in clients:
            try:
                root = await client.base_root()
            except (EngineError, EngineUnavailableError) as error:
                failure = error
                continue
            if root is None:
                raise ConfigError(
                    f"the engine at {client.base_url} does not name its base model: set "
                    "engine.model"
                )
            return root
        if asyncio.get_running_loop().time() > deadline:
            raise failure
        await asyncio.sleep(1.0)
