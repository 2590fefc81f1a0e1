"""The room and the time that one long episode takes; see ``bench/memory.py``."""

import argparse
import asyncio
import dataclasses
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bench.calls import VOCABULARY, new_call, new_episode
from memory.recording import CallKeys
from memory.store import Store
from memory.types import Call, Edge, Episode, EpisodeSource, utc_now

TURNS = 100
WORDS = ("the", "ferry", "left", "harbour", "at", "nine", "with", "lamps", "lit", "and", "mail")


def measure_episode(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the room and the time that a long episode takes."""
    report = {}
    for tokens_per_message in (40, 100, 400):
        store = Store(folder / f"{tokens_per_message}.db")
        name = f"messages_of_{tokens_per_message}_tokens"
        report[name] = asyncio.run(_long_episode(store, tokens_per_message))
        store.close()
    return report


async def _long_episode(store: Store, tokens_per_message: int) -> dict[str, Any]:
    """Record a conversation with tools; every prompt holds all that was said before."""
    rng = random.Random(7)
    empty_bytes = _used_bytes(store)
    calls = list(_conversation(rng, tokens_per_message))
    took_s = []
    for call, keys in calls:
        began = time.perf_counter()
        episode = Episode(
            id=call.episode_id, created_at=utc_now(), source=EpisodeSource.CHAT, task_text="ferry"
        )
        await store.episodes.record(episode, [call], [keys])
        took_s.append(time.perf_counter() - began)
    used = _used_bytes(store) - empty_bytes
    unique = unique_bytes([call for call, _ in calls])
    plain = sum(4 * len(c.prompt_token_ids or ()) + len(orjson.dumps(c.request)) for c, _ in calls)
    began = time.perf_counter()
    read = store.episodes.calls(calls[0][0].episode_id)
    read_s = time.perf_counter() - began
    if read != [call for call, _ in calls]:
        raise RuntimeError("what was read is not what was recorded")
    return {
        "turns": len(calls),
        "last_prompt_tokens": len(calls[-1][0].prompt_token_ids or ()),
        "unique_bytes": unique,
        "used_bytes": used,
        "times_unique": round(used / unique, 2),
        "bytes_without_sharing": plain,
        "last_record_ms": round(1000 * statistics.median(took_s[-10:]), 2),
        "read_ms": round(1000 * read_s, 1),
    }


def _conversation(rng: random.Random, length: int) -> Iterator[tuple[Call, CallKeys]]:
    """Yield turns: what a tool said, and an answer, of ``length`` tokens and words on average."""

    def number() -> int:
        return rng.randint(length // 2, length + length // 2)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=number()))

    def ids() -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(number())]

    tools = [{"type": "function", "function": {"name": "look", "description": text() * 4}}]
    messages = [{"role": "system", "content": text() * 3}]
    prompt, episode, parent = ids() + ids() + ids(), new_episode(), None
    for turn in range(TURNS):
        messages = [*messages, {"role": "user", "content": text()}]
        prompt, completion, answer = prompt + ids(), ids(), text()
        call = new_call(
            episode,
            prompt=prompt,
            completion=completion,
            logprobs=tuple(float(np.float32(-rng.random())) for _ in completion),
            messages=messages,
            answer=answer,
            more={"tools": tools},
            parent_id=parent,
            edge=None if parent is None else Edge.CONTINUATION,
        )
        call = _as_read(call)
        key = f"{turn:032x}"
        yield call, CallKeys(answer=key, system="0" * 32, request=key, quotes=[["answer", key, 9]])
        messages = [*messages, {"role": "assistant", "content": answer}]
        prompt, parent = prompt + completion, call.id


def _as_read(call: Call) -> Call:
    return dataclasses.replace(
        call,
        prompt_token_ids=tuple(call.prompt_token_ids or ()),
        completion_token_ids=tuple(call.completion_token_ids or ()),
    )


def unique_bytes(calls: Sequence[Call]) -> int:
    """Return the bytes of what is in no earlier call; of one conversation without forks."""
    last = calls[-1]
    num_ids = len(last.prompt_token_ids or ()) + len(last.completion_token_ids or ())
    num_logprobs = sum(len(call.sampler_logprobs or ()) for call in calls)
    texts = [*last.request["messages"], last.message, last.request["tools"]]
    return 4 * (num_ids + num_logprobs) + sum(len(orjson.dumps(text)) for text in texts)


def _used_bytes(store: Store) -> int:
    """Return the bytes of all pages that hold something."""
    [found] = store.database.read(
        """SELECT (page_count - freelist_count) * page_size AS used FROM pragma_page_count(),
            pragma_freelist_count(), pragma_page_size()"""
    )
    return int(found["used"])
