"""How likely given tokens are to named weights.

The learner asks through a Protocol of its own.
"""

from collections.abc import Sequence

from agent.adapter_slot import AdapterSlot


class Likelihood:
    """Asks an engine about whatever weights the slot can lease."""

    def __init__(self, slot: AdapterSlot) -> None:
        self._slot = slot

    async def __call__(self, *, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        """Return the log-probability of each token given those before it; [T], the first is None.

        Raises:
            EngineError: the engine failed.
            EngineUnavailableError: the engine is down.
            EngineRejectedError: it cannot take so many tokens.
        """
        async with self._slot.lease(adapter) as lease:
            return await lease.client.prompt_logprobs(lease.model, list(token_ids))
