"""Finds the episodes whose task is most like a given one.

The rows of ``vectors`` are the truth. What is searched is a cache of them: an exact index in memory
for a small store, a compact one past ``MAX_EXACT`` vectors, which is kept beside the database
because training it takes a minute. Ids are those of the rows and are never given twice, so that
the cache follows by the highest id it has seen; a row that is gone is never found, because each
result is read from its row.

It does not know how vectors are made, and nothing of skills.

Axes: ``N`` vectors, ``D`` dimensions.
"""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memory import vector_file
from memory.database import Database
from memory.embed import Vector
from memory.errors import DenizenError
from memory.index import CompactIndex, VectorIndex, num_sample
from memory.vector_rows import CHUNK, Row, VectorRows

log = logging.getLogger(__name__)

MAX_EXACT = 50_000
"""Vectors that are searched one by one, in 77 MB at 384 dimensions and a few milliseconds."""
OUTGROWN = 4
"""An index is trained anew when it holds this many times the vectors that it was trained for."""
SAVE_AFTER = 10_000  # changes; to read as many rows again at a start takes a second
RERANKED = 4  # candidates whose exact cosine is worked out, as a multiple of what is asked for
MAX_CANDIDATES = 1_024


@dataclass(frozen=True, kw_only=True, slots=True)
class SimilarEpisode:
    """One search result."""

    episode_id: str
    similarity: float  # cosine, in [-1, 1]


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
        self._rows = VectorRows(database, embedder_id=embedder_id, dimension=dimension)
        self._embedder_id = embedder_id
        self._dimension = dimension
        self._file = file
        self._max_exact = max_exact
        self._lock = threading.RLock()  # of what the index holds; searching takes it for moments
        self._index = VectorIndex(dimension)
        self._last_id = 0
        self._num_unsaved = 0
        self._is_open = False

    def __len__(self) -> int:
        return len(self._index)

    @property
    def ids(self) -> frozenset[int]:
        """The ids of the rows that can be found."""
        return self._index.ids

    def open(self) -> None:
        """Read the file, then make the index agree with the rows.

        It takes seconds for a million vectors, and two minutes where the file is missing or does
        not fit; until it returns nothing is found. It is done once.
        """
        with self._lock:
            if self._is_open:
                return
            known = self._load()
            if known is not None:
                self._index, self._last_id = known
            elif (number := sum(1 for _ in self._rows.ids())) > self._max_exact:
                self._train(number)
            self.reconcile()
            self._is_open = True

    def forget_gone(self) -> None:
        """Let go of rows that are gone, in the index and in its file, opened already or not."""
        with self._lock:
            self.open()
            self.reconcile()
            self.save()

    def reconcile(self) -> None:
        """Make the index agree with the rows, whatever it holds."""
        with self._lock:
            last_id = self._rows.newest_id()
            rows = set(self._rows.ids())  # some of them may be newer than that
            removed = self._index.remove_all(self._index.ids - rows)
            missing = np.array(sorted(rows - self._index.ids), dtype=np.int64)
            for start in range(0, len(missing), CHUNK):
                self._add(self._rows.by_id(missing[start : start + CHUNK].tolist()))
            self._last_id = max(last_id, max(rows, default=0))
            self._num_unsaved += removed

    def follow(self) -> None:
        """Add what has been stored since, unless another thread is about it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for rows in self._rows.chunks(after=self._last_id):
                self._add(rows)
                self._last_id = rows[-1]["id"]
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
                vector_file.write(self._file, self._header(index), index)
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
            found = self._rows.of_candidates([one.id for one in candidates], tenant)
            if len(found) >= limit or len(candidates) >= len(self._index):
                return self._nearest(vector_D, found, limit)
            if num_candidates >= MAX_CANDIDATES:  # a small tenant in a large store
                return self._nearest(vector_D, self._rows.of_tenant(tenant), limit)
            num_candidates = min(4 * num_candidates, MAX_CANDIDATES)

    def _add(self, rows: Sequence[Row]) -> None:
        """Put rows into the index, except vectors that point nowhere and those that are in it."""
        fresh = [row for row in rows if row["id"] not in self._index]
        self._num_unsaved += self._put(self._index, fresh)

    def _put(self, index: VectorIndex, rows: Sequence[Row]) -> int:
        ids_N, vectors_ND = self._rows.directions(rows)
        if len(ids_N):
            index.add_all(ids_N, vectors_ND)
        return len(ids_N)

    def _is_outgrown(self) -> bool:
        index = self._index
        if isinstance(index, CompactIndex):
            return len(index) > OUTGROWN * index.num_trained_for
        return len(index) > self._max_exact

    def _train(self, number: int) -> None:
        """Train a compact index on the rows and put it in place; searching goes on meanwhile."""
        last_id = self._rows.newest_id()
        stride = max(1, number // num_sample(number))
        chunks = self._rows.chunks(until=last_id, stride=stride)
        sample = [self._rows.directions(rows)[1] for rows in chunks]
        index = CompactIndex.train(np.concatenate(sample), number)
        del sample
        for rows in self._rows.chunks(until=last_id):
            self._put(index, rows)
        with self._lock:
            self._index, self._last_id = index, last_id
            self._num_unsaved = SAVE_AFTER
            self.reconcile()  # what went away meanwhile

    def _header(self, index: CompactIndex) -> vector_file.Header:
        return vector_file.Header(
            database=self._database_id(),
            embedder=self._embedder_id,
            dimension=self._dimension,
            last_id=self._last_id,
            num_trained_for=index.num_trained_for,
        )

    def _database_id(self) -> str:
        [identity] = self._db.read("SELECT id FROM identity")
        return str(identity["id"])

    def _load(self) -> tuple[CompactIndex, int] | None:
        """Return the index in the file and the last id it knows; None where it does not fit."""
        if not self._file.exists():
            return None
        try:
            return vector_file.read(
                self._file,
                database=self._database_id(),
                embedder=self._embedder_id,
                dimension=self._dimension,
                newest_id=self._rows.newest_id(),
            )
        except (OSError, DenizenError) as error:
            log.warning("%s is not used, and made again: %s", self._file.name, error)
            self._file.unlink(missing_ok=True)
            return None

    def _nearest(self, vector_D: Vector, rows: Sequence[Row], limit: int) -> list[SimilarEpisode]:
        """Return the best of some rows by their exact cosine."""
        if not rows:
            return []
        vectors_ND = self._rows.vectors(rows).astype(np.float64)
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
