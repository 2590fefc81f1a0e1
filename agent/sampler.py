"""Practice answers: several completions of one prompt from named weights, as calls.

The learner asks through a Protocol of its own; it sees records, never the engine's JSON.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agent.adapter_slot import AdapterSlot
from agent.capture import Capture
from agent.chat_request import upstream_body
from memory.types import Call, CallStatus, Message, new_id, utc_now


class Sampler:
    """Samples from whatever weights the slot can lease."""

    def __init__(self, slot: AdapterSlot) -> None:
        self._slot = slot

    async def __call__(
        self,
        *,
        adapter: str,
        messages: Sequence[Message],
        sampling: Mapping[str, Any],
        num_samples: int,
    ) -> list[Call]:
        """Return ``num_samples`` completions; each is a call in an episode of its own.

        Raises:
            EngineError: the engine failed.
            EngineUnavailableError: the engine is down.
            EngineRejectedError: the prompt cannot be served, for example because it is too long.
        """
        body = {"messages": list(messages), "n": num_samples, **sampling}
        started_at, started = utc_now(), time.perf_counter()
        async with self._slot.lease(adapter) as lease:
            answer = await lease.client.chat(lease.addressed(upstream_body(body)))
        capture = Capture()
        capture.absorb(answer)
        latency_ms = (time.perf_counter() - started) * 1000
        return [
            Call(
                id=answer["id"] if index == 0 else f"{answer['id']}.{index}",
                episode_id=new_id("ep"),
                created_at=started_at,
                adapter=adapter,
                request=body,
                message=choice.message(),
                prompt_token_ids=capture.prompt_token_ids,
                completion_token_ids=choice.token_ids or None,
                sampler_logprobs=choice.known_logprobs(),
                finish_reason=choice.finish_reason,
                status=CallStatus.OK,
                latency_ms=latency_ms,
            )
            for index, choice in sorted(capture.choices.items())
        ]
