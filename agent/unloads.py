"""Adapters on their way out of one engine, which may never answer.

Nobody waits for an unload but who needs its place, and that for a bounded time.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

from agent import metrics
from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from agent.policy import PolicyClient

logger = logging.getLogger(__name__)

UNLOAD_TIMEOUT_S = 10.0
"""vLLM unloads in milliseconds. An unload keeps its place until the engine has answered, but no
longer than this: a lost answer must not take a place away for ever. The engine may then hold one
name too many, until it restarts."""


class Unloads:
    """The unloads that run, by adapter name.

    Args:
        client: the engine.
        on_end: called when one has ended, well or not.
    """

    def __init__(self, client: PolicyClient, on_end: Callable[[], None]) -> None:
        self._client = client
        self._on_end = on_end
        self._running: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._running

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[str]:
        return iter(self._running)

    def start(self, name: str) -> None:
        """Begin to unload ``name``, for which no unload runs."""
        self._running[name] = task = asyncio.create_task(self._unload(name))
        task.add_done_callback(lambda _: self._end(name))

    async def close(self) -> None:
        """Give up what still runs."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, name: str) -> None:
        del self._running[name]
        self._on_end()

    async def _unload(self, name: str) -> None:
        try:
            async with asyncio.timeout(UNLOAD_TIMEOUT_S):
                await self._client.unload_adapter(name)
        except (EngineRejectedError, EngineUnavailableError):
            return  # it does not have it, or is gone with all it had
        except (EngineError, TimeoutError) as error:
            metrics.UNLOAD_FAILURES.inc()
            logger.warning("%s did not unload %s: %r", self._client.base_url, name, error)
