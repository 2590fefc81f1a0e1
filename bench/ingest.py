"""How fast the record takes calls; see ``bench/memory.py``."""

import argparse
import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

from bench.calls import VOCABULARY, new_call, new_episode
from memory.database import MemoryConfig
from memory.recording import CallKeys
from memory.store import Store
from memory.types import Call, Episode

PROMPT_TOKENS, COMPLETION_TOKENS = 400, 100
IN_FLIGHT = 64  # records that wait at once, as under a full load of requests


def measure_ingest(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return calls a second on one core, for both durabilities."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    report: dict[str, Any] = {"tokens_per_call": PROMPT_TOKENS + COMPLETION_TOKENS}
    for durability in ("process", "disk"):
        config = MemoryConfig(durability=durability)
        store = Store(folder / f"{durability}.db", config)
        report[durability] = asyncio.run(_ingest(store, options.seconds))
        store.close()
    return report


async def _ingest(store: Store, seconds: float) -> dict[str, Any]:
    rng = random.Random(7)
    waiting: set[asyncio.Future[None]] = set()
    counts: list[int] = []  # acknowledged in each second
    began = time.perf_counter()

    def on_done(done: "asyncio.Future[None]") -> None:
        done.result()
        waiting.discard(done)
        second = int(time.perf_counter() - began)
        counts.extend([0] * (second + 1 - len(counts)))
        counts[second] += 1

    number = 0
    while time.perf_counter() - began < seconds:
        episode, call, keys = _single(rng, number)
        number += 1
        kept = store.episodes.record(episode, [call], [keys])
        waiting.add(kept)
        kept.add_done_callback(on_done)
        if len(waiting) >= IN_FLIGHT:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    took_s = time.perf_counter() - began
    await asyncio.gather(*waiting)
    whole = counts[: int(took_s)]
    return {
        "seconds": round(took_s, 1),
        "calls_per_s": round(number / took_s),
        "slowest_second": min(whole, default=None),
        "bytes_per_call": round(store.database.path.stat().st_size / number),
    }


def _single(rng: random.Random, number: int) -> tuple[Episode, Call, CallKeys]:
    """Return a question of 400 tokens and its answer of 100, in an episode of its own."""
    start = rng.randrange(VOCABULARY - PROMPT_TOKENS)
    question, answer = f"{number} " + "the ferry left at nine " * 70, "it left at nine " * 25
    episode = new_episode()
    call = new_call(
        episode,
        prompt=range(start, start + PROMPT_TOKENS),
        messages=[{"role": "user", "content": question}],
        answer=answer,
        logprobs=[-0.25] * COMPLETION_TOKENS,
        completion=range(start, start + COMPLETION_TOKENS),
    )
    key = f"{number:032x}"
    return episode, call, CallKeys(answer=key, system="0" * 32, request=key)
