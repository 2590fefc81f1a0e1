"""Makes sure that an adapter changes what the engine computes.

An engine may load an adapter without complaint although no module of the model matches it, and then
answers as the base model does. Only its numbers tell.
"""

import asyncio
import math
from collections.abc import Sequence

from agent.errors import EngineError, EngineRejectedError
from agent.policy import PolicyClient
from memory.errors import AdapterError

PROBE_TOKEN_IDS = list(range(100, 132))
"""32 ids that every vocabulary has; on such nonsense small changes of the weights show."""
PROBE_TIMEOUT_S = 30.0
"""For three prompts; on two cores the packaged model takes 0.2 s when idle."""


async def probe_effect(client: PolicyClient, base_name: str, version: str) -> None:
    """Compare the log-probabilities of a fixed prompt under the version and under the base model.

    The base model is asked before and after: other requests in the same batch may change its bits,
    and an effect no larger than that change is none.

    Raises:
        AdapterError: the version's log-probabilities are the base model's, or are not finite.
        EngineError: the engine did not answer in time.
        EngineUnavailableError: the engine went away.
    """
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            before = await client.prompt_logprobs(base_name, PROBE_TOKEN_IDS)
            adapted = await client.prompt_logprobs(version, PROBE_TOKEN_IDS)
            after = await client.prompt_logprobs(base_name, PROBE_TOKEN_IDS)
    except TimeoutError as error:
        raise EngineError(
            f"the engine did not answer the probe of {version} within {PROBE_TIMEOUT_S:g} s"
        ) from error
    except (EngineError, EngineRejectedError) as error:
        raise AdapterError(f"the engine cannot answer with {version}: {error}") from error
    effect, noise = largest_gap(before, adapted), largest_gap(before, after)
    if not math.isfinite(effect):
        raise AdapterError(f"{version} gives log-probabilities that are not finite")
    if effect <= noise:
        raise AdapterError(
            f"{version} has no effect: the engine answers as the base model does. Its weights are "
            "zero, or its target modules match nothing in this model"
        )


def largest_gap(left: Sequence[float | None], right: Sequence[float | None]) -> float:
    """Return the largest absolute difference of two rows; NaN when one holds NaN."""
    gaps = [abs(a - b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    return math.nan if any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)
