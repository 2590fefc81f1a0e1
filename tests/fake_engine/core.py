"""The engine's heart: takes its time for tokens, counts them, or hangs."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fake_engine.faults import Switches

HANG_POLL_S = 0.01


class Core:
    """What vLLM's metrics count; starts from nothing with each start of the engine."""

    def __init__(self, switches: Switches) -> None:
        self._switches = switches
        self._num_running = 0
        self._num_prompt_tokens = 0
        self._num_tokens = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count a request among those that run."""
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    async def compute(self, num_tokens: int = 0, *, num_prompt: int = 0) -> None:
        """Take the time that tokens take, then count them; a hung core never comes to that.

        A prompt takes as long as one token, and is counted when it was read.
        """
        await asyncio.sleep(self._switches.seconds_per_token * (num_tokens + (num_prompt > 0)))
        while self._switches.hangs:
            await asyncio.sleep(HANG_POLL_S)
        self._num_prompt_tokens += num_prompt
        self._num_tokens += num_tokens

    def metrics(self, model_name: str) -> str:
        """Return the counters in Prometheus' form, under vLLM's names."""
        values = {
            "num_requests_running": self._num_running,
            "prompt_tokens_total": self._num_prompt_tokens,
            "generation_tokens_total": self._num_tokens,
        }
        labels = f'{{engine="0",model_name="{model_name}"}}'
        return "".join(f"vllm:{name}{labels} {float(value)}\n" for name, value in values.items())
