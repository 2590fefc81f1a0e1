"""Asks the engine for the base model, whatever is live: for work beside the answers.

Nothing of it is recorded.
"""

from collections.abc import Mapping
from typing import Any

from agent.adapter_slot import AdapterSlot
from memory.version_store import BASE


class BaseChat:
    """Chat completions of the base model."""

    def __init__(self, slot: AdapterSlot) -> None:
        self._slot = slot

    async def __call__(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the engine's answer to a chat completion's body.

        Raises:
            EngineError: the engine failed.
            EngineUnavailableError: the engine is down.
            EngineRejectedError: the engine refused the request.
        """
        async with self._slot.lease(BASE) as lease:
            return await lease.client.chat(lease.addressed(body))
