"""Practice answers: several completions of one prompt from named weights, as calls.

The learner asks through Protocols of its own; it sees records, never the engine's JSON.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from agent.adapter_slot import AdapterSlot
from agent.capture import Capture
from agent.chat_request import upstream_body
from agent.policy import CHAT_PATH, COMPLETIONS_PATH
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
        return await _sampled(self._slot, adapter, upstream_body(body), CHAT_PATH, record=body)


class TurnSampler:
    """Samples what follows given token ids, from whatever weights the slot can lease.

    The prompt is not rendered again: a chat template may write today's date into it, and memory
    may have put something there that the request does not hold. So no parser reads the answer
    either: tool calls and reasoning stand in its text as the model wrote them.
    """

    def __init__(self, slot: AdapterSlot) -> None:
        self._slot = slot

    async def __call__(
        self,
        *,
        adapter: str,
        prompt_token_ids: Sequence[int],
        request: Mapping[str, Any],
        sampling: Mapping[str, Any],
        num_samples: int,
    ) -> list[Call]:
        """Return ``num_samples`` completions; each is a call in an episode of its own.

        Args:
            adapter: the weights.
            prompt_token_ids: what is continued.
            request: what the calls keep as what was asked, beside ``sampling``.
            sampling: vLLM's parameters; without ``max_tokens`` it stops after 16.
            num_samples: how many.

        Raises:
            EngineError: the engine failed.
            EngineUnavailableError: the engine is down.
            EngineRejectedError: the prompt cannot be served, for example because it is too long.
        """
        asked = {"n": num_samples, **sampling}
        body = asked | {"prompt": list(prompt_token_ids), "skip_special_tokens": False}
        body |= {"return_token_ids": True, "logprobs": 0}  # 0: of the sampled token alone
        record = {**request, **asked}
        return await _sampled(self._slot, adapter, body, COMPLETIONS_PATH, record=record)


async def _sampled(
    slot: AdapterSlot, adapter: str, body: Mapping[str, Any], path: str, *, record: dict[str, Any]
) -> list[Call]:
    started_at, started = utc_now(), time.perf_counter()
    async with slot.lease(adapter) as lease:
        answer = await lease.client.chat(lease.addressed(body), path)
    capture = Capture()
    capture.absorb(answer)
    latency_ms = (time.perf_counter() - started) * 1000
    return [
        Call(
            id=answer["id"] if index == 0 else f"{answer['id']}.{index}",
            episode_id=new_id("ep"),
            created_at=started_at,
            adapter=adapter,
            request=record,
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
