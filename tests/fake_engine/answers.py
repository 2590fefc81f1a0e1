"""One answer to a chat request: its choices, whole or in chunks, in vLLM's shapes."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.fake_engine.choices import Choice

FINGERPRINT = "vllm-0.32.0-fake"


@dataclass(frozen=True, kw_only=True)
class ChatAnswer:
    """An answer before it is sent."""

    id: str
    model: str  # as it was asked for
    body: Mapping[str, Any]
    prompt_ids: Sequence[int]
    choices: Sequence[Choice]

    @property
    def num_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    def whole(self) -> dict[str, Any]:
        """Return the answer that is not streamed."""
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        return {
            **self._heading("chat.completion"),
            "choices": [choice.complete() for choice in self.choices],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self._usage() | details,
            "prompt_logprobs": None,
            "prompt_token_ids": self.prompt_ids if self.body.get("return_token_ids") else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def chunks(self, size: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
        """Yield how many tokens are computed for a chunk, and the chunk, if there is one.

        Args:
            size: tokens in one chunk.
        """
        heading = self._heading("chat.completion.chunk")
        for num_tokens, chunk in self._bare_chunks(size):
            yield num_tokens, None if chunk is None else heading | chunk

    def _bare_chunks(self, size: int) -> Iterator[tuple[int, dict[str, Any] | None]]:
        for choice in self.choices:
            yield 0, choice.first_chunk(self.prompt_ids)
        for choice in self.choices:
            yield from choice.chunks(size)
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield 0, {"choices": [], "usage": self._usage(), "system_fingerprint": FINGERPRINT}

    def _heading(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": int(time.time()), "model": self.model}

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": len(self.prompt_ids),
            "total_tokens": len(self.prompt_ids) + self.num_tokens,
            "completion_tokens": self.num_tokens,
        }
