"""How well and how fast vectors are found; see ``bench/memory.py``."""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from memory.store import Store
from memory.types import utc_now
from memory.vectors import EpisodeVectors

DIMENSION = 384
CLUSTERS = 2_000
CLUSTER_AXES = 24  # in how many directions of its own a cluster is spread
CHUNK = 20_000
NUM_QUERIES = 300
K = 10


def measure_vectors(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return how well and how fast vectors are found."""
    path = folder / "denizen.db"
    written = _apart(_write_vectors, path, options.vectors)
    built = _apart(_build, path)
    started = _apart(_search, path, written.pop("queries"), written.pop("truth"))
    return written | built | started


def _apart(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a function in a fresh process and return what it returns."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


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
        store.database.write(partial(_insert, ids=ids, vectors_ND=vectors_ND))
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
        vectors: np.ndarray = np.empty((number, DIMENSION), dtype=np.float32)
        for cluster in np.unique(which):
            own = which == cluster
            spread = self._rng.normal(size=(own.sum(), CLUSTER_AXES)).astype(np.float32)
            spread = 0.6 * (spread @ self._axes[cluster]) / CLUSTER_AXES**0.5
            vectors[own] = 0.7 * self._centres[cluster] + spread
        vectors += 0.35 * self._rng.normal(size=vectors.shape).astype(np.float32) / DIMENSION**0.5
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def _normal(self, *shape: int) -> np.ndarray:
        drawn: np.ndarray = self._rng.normal(size=shape).astype(np.float32)
        drawn /= np.linalg.norm(drawn, axis=-1, keepdims=True)
        return drawn


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
