"""Engines that run elsewhere, by URL: noticing when they answer and when they stop.

The counterpart of ``VllmProcess.supervise`` for servers that are not ours to start.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agent.errors import EngineUnavailableError
from agent.policy import PolicyClient
from memory.errors import ConfigError, DenizenError

POLL_S = 2.0


async def watch(
    clients: Sequence[PolicyClient],
    on_ready: Callable[[], Awaitable[None]],
    on_down: Callable[[str], Awaitable[None]],
) -> None:
    """Look again and again: ``on_ready`` when all engines answer, else ``on_down(reason)``.

    A server that restarted between two looks answers as before but has lost its adapters; so
    ``on_ready`` puts right what is missing each time and does nothing where all is well.
    """
    while True:
        silent = [client.base_url for client in clients if not await client.health()]
        if silent:
            await on_down(f"the engine at {', '.join(silent)} does not answer")
        else:
            try:
                await on_ready()
            except DenizenError as error:
                await on_down(error.message)
        await asyncio.sleep(POLL_S)


async def base_root(client: PolicyClient, timeout_s: float) -> str:
    """Wait for an engine and return the folder or hub name of its base model.

    Raises:
        EngineUnavailableError: it did not answer in time.
        ConfigError: it does not say.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            root = await client.base_root()
        except EngineUnavailableError:
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(1.0)
            continue
        if root is None:
            raise ConfigError(
                f"the engine at {client.base_url} does not name its base model: set engine.model"
            )
        return root
