"""Synthetic episodes and calls, as the gateway records them."""

import os
from collections.abc import Sequence
from typing import Any

from memory.types import Call, CallStatus, Episode, EpisodeSource, new_id, utc_now

VOCABULARY = 49_152


def new_episode() -> Episode:
    """Return an episode of a chat that has just begun."""
    source = EpisodeSource.CHAT
    return Episode(id=new_id("ep"), created_at=utc_now(), source=source, task_text="the ferry left")


def new_call(
    episode: Episode,
    *,
    prompt: Sequence[int],
    completion: Sequence[int],
    logprobs: Sequence[float],
    messages: Sequence[dict[str, Any]],
    answer: str,
    **fields: Any,
) -> Call:
    """Return an answered call; ``more`` is added to its request."""
    request = {"model": "denizen", "messages": messages, "max_tokens": 512} | fields.pop("more", {})
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(completion)}
    return Call(
        id=f"chatcmpl-{os.urandom(16).hex()}",
        episode_id=episode.id,
        created_at=utc_now(),
        adapter="denizen-000007",
        request=request,
        message={"role": "assistant", "content": answer},
        prompt_token_ids=list(prompt),
        completion_token_ids=list(completion),
        sampler_logprobs=logprobs,
        finish_reason="stop",
        status=CallStatus.OK,
        latency_ms=812.5,
        usage=usage | {"total_tokens": len(prompt) + len(completion)},
        **fields,
    )
