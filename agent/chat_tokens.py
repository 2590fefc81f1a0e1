"""Conversations as token ids, written by the engine's own chat template.

The learner asks through a Protocol of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agent.adapter_slot import AdapterSlot
from memory.version_store import BASE


class ChatTokens:
    """Asks an engine; its base model, whose template all versions share."""

    def __init__(self, slot: AdapterSlot) -> None:
        self._slot = slot

    async def __call__(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return a conversation's token ids; a last message of the assistant's is left open.

        Raises:
            EngineError: the engine failed.
            EngineUnavailableError: the engine is down.
            EngineRejectedError: its template cannot write them.
        """
        is_answered = messages[-1]["role"] == "assistant"
        async with self._slot.lease(BASE) as lease:
            body = {
                "model": lease.model,
                "messages": list(messages),
                "add_generation_prompt": not is_answered,
                "continue_final_message": is_answered,
            }
            return await lease.client.tokenize(body)
