"""Measures the record: how fast it takes calls, how much room they take, how vectors are found.

``python -m bench.memory`` prints one JSON object and takes about a quarter of an hour on two cores:

- ``ingest``: calls of 500 tokens a second through ``EpisodeStore.record`` on one core, sustained
  for a minute, for both settings of ``memory.durability``;
- ``episode``: the room that an episode of 100 turns takes, whose prompts hold all that was said
  before, as a multiple of what is unique in it: 4 bytes for each token id and each log-probability
  that is in no earlier call, and the JSON of each message and tool that is in no earlier call. The
  room is that of all pages of tables and indexes, keys and times included;
- ``vectors``: a million synthetic vectors in clusters: recall of the 10 nearest, how long a search
  takes, what the index keeps in memory, and how long a start takes with its file and without.

``--only`` runs a part; ``--vectors`` and ``--seconds`` make it smaller.
"""

import argparse
import asyncio
import dataclasses
import json
import multiprocessing
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from memory.database import MemoryConfig
from memory.episode_store import CallKeys
from memory.store import Store
from memory.types import Call, CallStatus, Edge, Episode, EpisodeSource, new_id, utc_now
from memory.vectors import EpisodeVectors

VOCABULARY = 49_152
PROMPT_TOKENS, COMPLETION_TOKENS = 400, 100
IN_FLIGHT = 64  # records that wait at once, as under a full load of requests
TURNS = 100
WORDS = ("the", "ferry", "left", "harbour", "at", "nine", "with", "lamps", "lit", "and", "mail")

DIMENSION = 384
CLUSTERS = 2_000
CLUSTER_AXES = 24  # in how many directions of its own a cluster is spread
CHUNK = 20_000
NUM_QUERIES = 300
K = 10


def main() -> None:
    """Run the parts that the command line asks for."""
    options = _options()
    parts: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
        "ingest": measure_ingest,
        "episode": measure_episode,
        "vectors": measure_vectors,
    }
    report: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="denizen-bench-", dir=options.folder) as folder:
                report[name] = part(Path(folder), options)
    print(json.dumps(report, indent=2))


def _apart(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a function in a fresh process and return what it returns."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


# ---- ingest


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
    episode = _episode()
    call = _call(
        episode,
        prompt=range(start, start + PROMPT_TOKENS),
        messages=[{"role": "user", "content": question}],
        answer=answer,
        logprobs=[-0.25] * COMPLETION_TOKENS,
        completion=range(start, start + COMPLETION_TOKENS),
    )
    key = f"{number:032x}"
    return episode, call, CallKeys(answer=key, system="0" * 32, request=key)


def _episode() -> Episode:
    source = EpisodeSource.CHAT
    return Episode(id=new_id("ep"), created_at=utc_now(), source=source, task_text="the ferry left")


def _call(
    episode: Episode,
    *,
    prompt: Sequence[int],
    completion: Sequence[int],
    logprobs: Sequence[float],
    messages: Sequence[dict[str, Any]],
    answer: str,
    **fields: Any,
) -> Call:
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


# ---- one long episode


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
    prompt, episode, parent = ids() + ids() + ids(), _episode(), None
    for turn in range(TURNS):
        messages = [*messages, {"role": "user", "content": text()}]
        prompt, completion, answer = prompt + ids(), ids(), text()
        call = _call(
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


# ---- vectors


def measure_vectors(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return how well and how fast vectors are found."""
    path = folder / "denizen.db"
    written = _apart(_write_vectors, path, options.vectors)
    built = _apart(_build, path)
    started = _apart(_search, path, written.pop("queries"), written.pop("truth"))
    return written | built | started


def _write_vectors(path: Path, number: int) -> dict[str, Any]:
    """Store vectors; return queries, and which rows are truly nearest to each."""
    source = _Clusters(seed=7)
    queries_QD = source.draw(NUM_QUERIES)
    best = np.full((NUM_QUERIES, K), -2.0, dtype=np.float32)
    best_ids = np.zeros((NUM_QUERIES, K), dtype=np.int64)
    store = Store(path)
    began = time.perf_counter()
    for start in range(0, number, CHUNK):
        vectors_ND = source.draw(min(CHUNK, number - start))
        ids = np.arange(start, start + len(vectors_ND)) + 1
        store.database.write(lambda db, i=ids, v=vectors_ND: _insert(db, i, v))
        cosines = np.concatenate([best, queries_QD @ vectors_ND.T], axis=1)
        all_ids = np.concatenate([best_ids, np.broadcast_to(ids, (NUM_QUERIES, len(ids)))], axis=1)
        top = np.argpartition(-cosines, K, axis=1)[:, :K]
        best = np.take_along_axis(cosines, top, axis=1)
        best_ids = np.take_along_axis(all_ids, top, axis=1)
    store.close()
    return {
        "number": number,
        "dimension": DIMENSION,
        "written_s": round(time.perf_counter() - began, 1),
        "cosine_of_10th": round(float(np.median(best.min(axis=1))), 3),
        "queries": queries_QD,
        "truth": best_ids,
    }


class _Clusters:
    """Unit vectors around centres, spread in a few directions of each cluster and a little in all.

    Half of the squared length is the centre's, as of tasks of one kind under MiniLM.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._centres = self._normal(CLUSTERS, DIMENSION)
        self._axes = self._normal(CLUSTERS, CLUSTER_AXES, DIMENSION)
        sizes = self._rng.pareto(1.2, CLUSTERS) + 0.2  # a few kinds of task are most of the work
        self._share = sizes / sizes.sum()

    def draw(self, number: int) -> np.ndarray:
        """Return float32 [number, DIMENSION]."""
        which = self._rng.choice(CLUSTERS, size=number, p=self._share)
        vectors = np.empty((number, DIMENSION), dtype=np.float32)
        for cluster in np.unique(which):
            own = which == cluster
            spread = self._rng.normal(size=(own.sum(), CLUSTER_AXES)).astype(np.float32)
            spread = 0.6 * (spread @ self._axes[cluster]) / CLUSTER_AXES**0.5
            vectors[own] = 0.7 * self._centres[cluster] + spread
        vectors += 0.35 * self._rng.normal(size=vectors.shape).astype(np.float32) / DIMENSION**0.5
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _normal(self, *shape: int) -> np.ndarray:
        drawn = self._rng.normal(size=shape).astype(np.float32)
        return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def _insert(db: Any, ids: np.ndarray, vectors_ND: np.ndarray) -> None:
    at = utc_now().isoformat()
    db.conn.executemany(
        """INSERT INTO episodes (id, created_at, source, task_text, learn, revision,
            digested_revision) VALUES (?, ?, 'chat', 'synthetic', 1, 1, 1)""",
        [(f"ep_{id:09d}", at) for id in ids],
    )
    db.conn.executemany(
        "INSERT INTO vectors (id, episode_id, embedder, vector) VALUES (?, ?, 'synthetic', ?)",
        [(int(id), f"ep_{id:09d}", row.tobytes()) for id, row in zip(ids, vectors_ND, strict=True)],
    )


def _vectors_of(path: Path) -> tuple[Store, EpisodeVectors]:
    store = Store(path)
    file = path.with_name("vectors.faiss")
    return store, EpisodeVectors(
        store.database, embedder_id="synthetic", dimension=DIMENSION, file=file
    )


def _build(path: Path) -> dict[str, Any]:
    """Start without a file, as after it was lost."""
    store, vectors = _vectors_of(path)
    began = time.perf_counter()
    vectors.open()
    vectors.maintain()
    built_s = time.perf_counter() - began
    vectors.save()
    store.close()
    file = path.with_name("vectors.faiss")
    return {
        "start_without_file_s": round(built_s, 1),
        "build_peak_mib": _mib("VmHWM"),
        "file_mib": round(file.stat().st_size / 2**20) if file.exists() else None,
    }


def _search(path: Path, queries_QD: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    """Start with the file, then search."""
    before = _mib("VmRSS")
    store, vectors = _vectors_of(path)
    began = time.perf_counter()
    vectors.open()
    start_s = time.perf_counter() - began
    after = _mib("VmRSS")
    took_ms, found = [], []
    for query_D in queries_QD:
        began = time.perf_counter()
        nearest = vectors.search(query_D, limit=K)
        took_ms.append(1000 * (time.perf_counter() - began))
        found.append({int(one.episode_id.removeprefix("ep_")) for one in nearest})
    hits = [len(ids & set(row)) for ids, row in zip(found, truth.tolist(), strict=True)]
    store.close()
    return {
        "start_s": round(start_s, 1),
        "index_resident_mib": after - before,
        "resident_mib": _mib("VmRSS"),
        "peak_mib": _mib("VmHWM"),
        "recall_at_10": round(sum(hits) / (K * len(hits)), 4),
        "search_ms": {
            "p50": round(float(np.percentile(took_ms, 50)), 2),
            "p95": round(float(np.percentile(took_ms, 95)), 2),
            "max": round(max(took_ms), 2),
        },
    }


def _mib(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) // 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--only", choices=("ingest", "episode", "vectors"))
    parser.add_argument("--seconds", type=float, default=60.0, help="of ingest, each durability")
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to work; 4 GB for a million vectors")
    return parser.parse_args()


if __name__ == "__main__":
    main()
