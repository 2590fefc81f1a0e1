"""Finds the episodes whose task is most like a given one.

The rows of ``vectors`` are the truth. What is searched is a cache of them: an exact index in memory
for a small store, a compact one past ``MAX_EXACT`` vectors, which is kept beside the database as
``vectors.faiss`` because training it takes a minute. Ids are those of the rows and are never given
twice, so that the cache follows by the highest id it has seen; a row that is gone is never found,
because each result is read from its row. Vectors of another embedder or another size are left out.

It does not know how vectors are made, and nothing of skills.

Axes: ``N`` vectors, ``D`` dimensions.
"""

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from memory.database import Database
from memory.embed import Vector
from memory.errors import DenizenError
from memory.index import (
    CompactIndex,
    VectorIndex,
    VectorIndexError,
    Vectors,
    is_direction,
    num_sample,
)

log = logging.getLogger(__name__)

MAX_EXACT = 50_000
"""Vectors that are searched one by one, in 77 MB at 384 dimensions and a few milliseconds."""
OUTGROWN = 4
"""An index is trained anew when it holds this many times the vectors that it was trained for."""
CHUNK = 4_096  # rows read at once
SAVE_AFTER = 10_000  # changes; to read as many rows again at a start takes a second
RERANKED = 4  # candidates whose exact cosine is worked out, as a multiple of what is asked for
MAX_CANDIDATES = 1_024
FILE_NAME = "vectors.faiss"
MAGIC = b"denizen vectors 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True, slots=True)
class SimilarEpisode:
    """One search result."""

    episode_id: str
    similarity: float  # cosine, in [-1, 1]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    """What a file of vectors says of itself; all of it must fit, or the file is not used."""

    database: str
    embedder: str
    dimension: int
    last_id: int  # of the rows that it was made from
    num_trained_for: int


class EpisodeVectors:
    """The vectors of all episodes, searchable; safe to call from several threads.

    Args:
        database: where the rows are.
        embedder_id: whose vectors are searched.
        dimension: ``D`` of that embedder.
        file: where the compact index is kept; rebuilt when it is missing, broken, or of another
            database or embedder.
        max_exact: past how many vectors the index is a compact one.
    """

    def __init__(
        self,
        database: Database,
        *,
        embedder_id: str,
        dimension: int,
        file: Path,
        max_exact: int = MAX_EXACT,
    ) -> None:
        self._db = database
        self._embedder_id = embedder_id
        self._dimension = dimension
        self._file = file
        self._max_exact = max_exact
        self._lock = threading.RLock()  # of what the index holds; searching takes it for moments
        self._index = VectorIndex(dimension)
        self._last_id = 0
        self._num_unsaved = 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def ids(self) -> frozenset[int]:
        """The ids of the rows that can be found."""
        return self._index.ids

    def open(self) -> None:
        """Read the file, then make the index agree with the rows.

        It takes seconds for a million vectors, and two minutes where the file is missing or does
        not fit; until it returns nothing is found.
        """
        with self._lock:
            known = self._load()
            if known is not None:
                self._index, self._last_id = known
            elif (number := sum(1 for _ in self._row_ids())) > self._max_exact:
                self._train(number)
            self.reconcile()

    def reconcile(self) -> None:
        """Make the index agree with the rows, whatever it holds."""
        with self._lock:
            last_id = self._newest_id()
            rows = set(self._row_ids())  # some of them may be newer than that
            removed = self._index.remove_all(self._index.ids - rows)
            missing = np.array(sorted(rows - self._index.ids), dtype=np.int64)
            for start in range(0, len(missing), CHUNK):
                self._add(self._rows_of(missing[start : start + CHUNK].tolist()))
            self._last_id = max(last_id, max(rows, default=0))
            self._num_unsaved += removed

    def follow(self) -> None:
        """Add what has been stored since, unless another thread is about it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            sql = """SELECT id, vector FROM vectors WHERE embedder = ? AND length(vector) = ?
                AND id > ? ORDER BY id LIMIT ?"""
            while found := self._db.read(sql, (*self._kind, self._last_id, CHUNK)):
                self._add(found)
                self._last_id = found[-1]["id"]
        finally:
            self._lock.release()

    def maintain(self) -> None:
        """Follow the rows, train an index that was outgrown, and keep the file up to date.

        To be called from a thread every few minutes; searching goes on meanwhile, and finds what
        came while the file is written once it is written.
        """
        self.reconcile()
        if self._is_outgrown():
            self._train(len(self._index))
        if self._num_unsaved >= SAVE_AFTER:
            self.save()

    def save(self) -> None:
        """Write a compact index to its file; a small store needs none."""
        with self._lock:
            index = self._index
            if not isinstance(index, CompactIndex):
                self._file.unlink(missing_ok=True)
            elif self._num_unsaved or not self._file.exists():
                header = self._header(self._last_id, index.num_trained_for)
                _write(self._file, header, index)
            self._num_unsaved = 0

    def search(
        self, vector_D: Vector, *, limit: int, tenant: str | None = None
    ) -> list[SimilarEpisode]:
        """Return the at most ``limit`` nearest episodes of a tenant, the nearest first.

        Raises:
            VectorIndexError: The vector is not [D], not finite, or zero.
        """
        self.follow()
        num_candidates = RERANKED * limit
        while True:
            candidates = self._index.search(vector_D, limit=num_candidates)
            found = self._read([one.id for one in candidates], tenant)
            if len(found) >= limit or len(candidates) >= len(self._index):
                return _nearest(vector_D, found, limit)
            if num_candidates >= MAX_CANDIDATES:  # a small tenant in a large store
                return _nearest(vector_D, self._read_tenant(tenant), limit)
            num_candidates = min(4 * num_candidates, MAX_CANDIDATES)

    def left_out(self) -> dict[str, int]:
        """Count the episodes that cannot be found, by reason."""
        with self._lock:
            self.follow()
            sql = """SELECT embedder, length(vector) AS size, COUNT(*) AS number FROM vectors
                GROUP BY 1, 2"""
            kinds = self._db.read(sql)
            none = self._db.read(
                """SELECT missing_reason AS reason, COUNT(*) AS number FROM vectors
                    WHERE embedder = ? AND vector IS NULL GROUP BY 1""",
                (self._embedder_id,),
            )
            reasons = {row["reason"] or "no vector": row["number"] for row in none}
            unusable = -len(self._index)
            for kind in kinds:
                if (kind["embedder"], kind["size"]) == self._kind:
                    unusable += kind["number"]
                elif kind["embedder"] != self._embedder_id:
                    other = f"embedded by {kind['embedder']}"
                    reasons[other] = reasons.get(other, 0) + kind["number"]
                elif kind["size"] is not None:
                    reasons["of another dimension"] = kind["number"]
            return reasons | ({"zero, or not finite": unusable} if unusable else {})

    @property
    def _kind(self) -> tuple[str, int]:
        return self._embedder_id, self._dimension * np.dtype("<f4").itemsize

    def _newest_id(self) -> int:
        found = self._db.read("SELECT seq FROM sqlite_sequence WHERE name = 'vectors'")
        return int(found[0]["seq"]) if found else 0

    def _row_ids(self) -> Iterator[int]:
        sql = """SELECT id FROM vectors WHERE embedder = ? AND length(vector) = ? AND id > ?
            ORDER BY id LIMIT ?"""
        last = 0
        while found := self._db.read(sql, (*self._kind, last, 8 * CHUNK)):
            yield from (row["id"] for row in found)
            last = found[-1]["id"]

    def _rows_of(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        marks = ", ".join("?" * len(ids))
        return self._db.read(f"SELECT id, vector FROM vectors WHERE id IN ({marks})", tuple(ids))

    def _add(self, found: Sequence[dict[str, Any]]) -> None:
        """Put rows into the index, except vectors that point nowhere and those that are in it."""
        fresh = [row for row in found if row["id"] not in self._index]
        self._num_unsaved += _add(self._index, fresh, self._dimension)

    def _is_outgrown(self) -> bool:
        index = self._index
        if isinstance(index, CompactIndex):
            return len(index) > OUTGROWN * index.num_trained_for
        return len(index) > self._max_exact

    def _train(self, number: int) -> None:
        """Train a compact index on the rows and put it in place; searching goes on meanwhile."""
        last_id = self._newest_id()
        stride = max(1, number // num_sample(number))
        sql = """SELECT id, vector FROM vectors WHERE embedder = ? AND length(vector) = ?
            AND id > ? AND id <= ? AND id % ? = 0 ORDER BY id LIMIT ?"""
        sample = [_good(rows, self._dimension)[1] for rows in self._chunks(sql, last_id, stride)]
        index = CompactIndex.train(np.concatenate(sample), number)
        del sample
        for rows in self._chunks(sql, last_id, 1):
            _add(index, rows, self._dimension)
        with self._lock:
            self._index, self._last_id = index, last_id
            self._num_unsaved = SAVE_AFTER
            self.reconcile()  # what went away meanwhile

    def _chunks(self, sql: str, last_id: int, stride: int) -> Iterator[list[dict[str, Any]]]:
        after = 0
        while found := self._db.read(sql, (*self._kind, after, last_id, stride, CHUNK)):
            yield found
            after = found[-1]["id"]

    def _read(self, ids: Sequence[int], tenant: str | None) -> list[dict[str, Any]]:
        """Return what is left of the rows of candidates, the tenant's own."""
        if not ids:
            return []
        marks = ", ".join("?" * len(ids))
        sql = f"""SELECT v.id, episode_id, vector FROM vectors v JOIN episodes e
            ON e.id = episode_id WHERE v.id IN ({marks}) AND embedder = ? AND length(vector) = ?
            AND tenant IS ?"""
        return self._db.read(sql, (*ids, *self._kind, tenant))

    def _read_tenant(self, tenant: str | None) -> list[dict[str, Any]]:
        sql = """SELECT v.id, episode_id, vector FROM episodes e JOIN vectors v
            ON v.episode_id = e.id WHERE tenant IS ? AND embedder = ? AND length(vector) = ?"""
        return self._db.read(sql, (tenant, *self._kind))

    def _header(self, last_id: int, num_trained_for: int) -> _Header:
        [identity] = self._db.read("SELECT id FROM identity")
        return _Header(
            database=identity["id"],
            embedder=self._embedder_id,
            dimension=self._dimension,
            last_id=last_id,
            num_trained_for=num_trained_for,
        )

    def _load(self) -> tuple[CompactIndex, int] | None:
        """Return the index in the file and the last id it knows; None where it does not fit."""
        if not self._file.exists():
            return None
        try:
            with self._file.open("rb") as file:
                header = _read_header(file)
                expected = self._header(header.last_id, header.num_trained_for)
                problem = file_problem(
                    self._file,
                    database=expected.database,
                    embedder=self._embedder_id,
                    newest_id=self._newest_id(),
                )
                if problem is None and header.dimension != self._dimension:
                    problem = f"it has {header.dimension} dimensions, not {self._dimension}"
                if problem is not None:
                    raise VectorIndexError(problem)
                return CompactIndex.read(file, header.num_trained_for), header.last_id
        except (OSError, DenizenError) as error:
            log.warning("%s is not used, and made again: %s", self._file.name, error)
            self._file.unlink(missing_ok=True)
            return None


def _nearest(vector_D: Vector, found: Iterable[dict[str, Any]], limit: int) -> list[SimilarEpisode]:
    """Return the best of some rows by their exact cosine."""
    rows = list(found)
    if not rows:
        return []
    vectors_ND = _vectors(rows, len(vector_D)).astype(np.float64)
    query_D = np.asarray(vector_D, dtype=np.float64)
    cosines_N = vectors_ND @ (query_D / np.linalg.norm(query_D))
    cosines_N /= np.linalg.norm(vectors_ND, axis=1)
    best = np.argsort(-cosines_N, kind="stable")[:limit]
    return [
        SimilarEpisode(
            episode_id=rows[n]["episode_id"], similarity=float(np.clip(cosines_N[n], -1.0, 1.0))
        )
        for n in best
    ]


def _vectors(rows: Sequence[dict[str, Any]], dimension: int) -> Vectors:
    joined = b"".join([row["vector"] for row in rows])
    return np.frombuffer(joined, dtype="<f4").astype(np.float32).reshape(-1, dimension)


def _good(rows: Sequence[dict[str, Any]], dimension: int) -> tuple[Any, Vectors]:
    """Return the ids and vectors of those rows that point somewhere."""
    vectors_ND = _vectors(rows, dimension)
    ids_N = np.array([row["id"] for row in rows], dtype=np.int64)
    good_N = is_direction(np.linalg.norm(vectors_ND, axis=1))
    return ids_N[good_N], vectors_ND[good_N]


def _add(index: VectorIndex, rows: Sequence[dict[str, Any]], dimension: int) -> int:
    ids_N, vectors_ND = _good(rows, dimension)
    if len(ids_N):
        index.add_all(ids_N, vectors_ND)
    return len(ids_N)


class _Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, chunk: bytes) -> int:
        self.digest.update(chunk)
        return self._file.write(chunk)


def _write(path: Path, header: _Header, index: CompactIndex) -> None:
    """Write a file so that it is there as a whole or not at all, whenever the machine stops."""
    staged = path.with_suffix(".tmp")
    with staged.open("wb") as file:
        file.write(MAGIC + json.dumps(asdict(header)).encode() + b"\n")
        hashed = _Hashed(file)
        index.write(hashed)  # type: ignore[arg-type]
        file.write(hashed.digest.digest())
        file.flush()
        os.fsync(file.fileno())
    staged.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def file_problem(file: Path, *, database: str, embedder: str, newest_id: int) -> str | None:
    """Say why a file would not be used at the next start; None: it would, or there is none."""
    if not file.exists():
        return None
    try:
        with file.open("rb") as opened:
            header = _read_header(opened)
            if (header.database, header.embedder) != (database, embedder):
                return "it belongs to another database or embedder"
            if header.last_id > newest_id:
                return "the database is older: it was restored from a backup"
            _check_digest(opened)
    except (OSError, DenizenError) as error:
        return str(error)
    return None


def _read_header(file: BinaryIO) -> _Header:
    if file.readline(len(MAGIC)) != MAGIC:
        raise VectorIndexError("it is no file of vectors of this Denizen")
    try:
        return _Header(**json.loads(file.readline(4_096)))
    except (ValueError, TypeError) as error:
        raise VectorIndexError(f"its header cannot be read: {error}") from error


def _check_digest(file: BinaryIO) -> None:
    """Make sure that the rest of a file is as it was written; leaves the place as it was."""
    start = file.tell()
    size = os.fstat(file.fileno()).st_size - start - _DIGEST_BYTES
    digest = hashlib.sha256()
    left = max(size, 0)
    while left > 0 and (chunk := file.read(min(left, 1 << 20))):
        digest.update(chunk)
        left -= len(chunk)
    if size <= 0 or file.read(_DIGEST_BYTES) != digest.digest():
        raise VectorIndexError("it is damaged or incomplete")
    file.seek(start)
