"""Vector indexes with ids: nearest neighbours by cosine.

A cache, never the truth: an index lives in memory and is rebuilt from rows. Knows nothing of what
the ids stand for. Vectors are checked before faiss sees them: it answers some wrong input by ending
the process.

Axes: ``N`` vectors, ``D`` dimensions.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import faiss
import numpy as np
from numpy.typing import NDArray

from memory.embed import Vector
from memory.errors import DenizenError

Vectors = NDArray[np.float32]
Ids = NDArray[np.int64]

TRAINING_VECTORS_PER_LIST = 40
"""faiss warns below 39, and more change little."""
LISTS_PER_ROOT = 4
"""Lists of a compact index, as a multiple of the square root of N: what faiss recommends."""
SEARCHED_SHARE = 0.04
"""Share of the lists that a search looks into. Measured on a million vectors in 2,000 clusters
(``bench/memory.py``; 2 cores, November 2026), share: recall of the 10 nearest, p95 of a search:
0.006: 0.89, 2 ms; 0.02: 0.98, 2 ms; 0.04: 0.99, 3.5 ms.
"""
MIN_SEARCHED = 32


class VectorIndexError(DenizenError, ValueError):
    """A vector that cannot be indexed or searched for, or a file that holds no index."""

    code = "index_error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """One search result."""

    id: int
    similarity: float  # cosine, in [-1, 1]


class VectorIndex:
    """Exact cosine search over id-mapped vectors; safe to call from several threads.

    Vectors are kept at length 1, so that the inner product is the cosine.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._changing = threading.Lock()  # taken before the other; writing a file holds it alone
        self._lock = threading.Lock()  # between a search and a change
        self._ids: set[int] = set()
        self._faiss: faiss.Index = faiss.IndexIDMap(faiss.IndexFlatIP(dimension))

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: int) -> bool:
        return id in self._ids

    @property
    def ids(self) -> frozenset[int]:
        """The ids that can be found."""
        with self._lock:
            return frozenset(self._ids)

    def add(self, id: int, vector_D: Vector) -> None:
        """Add a vector; the id's earlier vector is replaced.

        Raises:
            VectorIndexError: The vector is not [D], not finite, or zero; the index is unchanged.
        """
        row_1D = self._unit_row(vector_D, f"vector {id}")
        with self._changing, self._lock:
            self._discard([id])
            self._insert(np.array([id], dtype=np.int64), row_1D)

    def add_all(self, ids_N: Ids, vectors_ND: Vectors) -> None:
        """Add many vectors under new ids.

        Raises:
            VectorIndexError: The vectors are not [N, D], one is not finite or zero, or an id is in
                the index; the index is unchanged.
        """
        units_ND = unit_rows(vectors_ND, self.dimension)
        with self._changing, self._lock:
            if self._ids.intersection(ids_N.tolist()) or len(set(ids_N.tolist())) < len(units_ND):
                raise VectorIndexError("an id is in the index, or comes twice")
            self._insert(np.ascontiguousarray(ids_N, dtype=np.int64), units_ND)

    def remove(self, id: int) -> bool:
        """Remove an id; return whether it was there."""
        return self.remove_all([id]) == 1

    def remove_all(self, ids: Iterable[int]) -> int:
        """Remove ids; return how many were there."""
        with self._changing, self._lock:
            return self._discard(ids)

    def search(self, vector_D: Vector, *, limit: int) -> list[Neighbour]:
        """Return the at most ``limit`` nearest ids, the nearest first.

        Raises:
            VectorIndexError: The vector is not [D], not finite, or zero.
        """
        row_1D = self._unit_row(vector_D, "query")
        with self._lock:
            count = min(limit, len(self._ids))
            if count < 1:
                return []
            similarities_1N, ids_1N = self._faiss.search(row_1D, count)
        # Rounding takes a product of unit vectors to 1.0000001.
        return [
            Neighbour(id=int(id), similarity=float(np.clip(similarity, -1.0, 1.0)))
            for id, similarity in zip(ids_1N[0], similarities_1N[0], strict=True)
            if id >= 0  # -1: fewer were found
        ]

    def _insert(self, ids_N: Ids, units_ND: Vectors) -> None:
        self._faiss.add_with_ids(units_ND, ids_N)
        self._ids.update(ids_N.tolist())

    def _discard(self, ids: Iterable[int]) -> int:
        known = self._ids.intersection(ids)
        if known:
            self._faiss.remove_ids(faiss.IDSelectorBatch(np.fromiter(known, dtype=np.int64)))
            self._ids -= known
        return len(known)

    def _unit_row(self, vector_D: Vector, what: str) -> Vectors:
        # In double precision: the square of a tiny or huge entry leaves float32's range.
        row_D = np.asarray(vector_D, dtype=np.float64)
        if row_D.shape != (self.dimension,):
            raise VectorIndexError(f"{what} has shape {row_D.shape}, expected ({self.dimension},)")
        if not np.isfinite(row_D).all():
            raise VectorIndexError(f"{what} holds NaN or infinity")
        norm = float(np.linalg.norm(row_D))
        if norm == 0.0:
            raise VectorIndexError(f"{what} is zero: it points nowhere, so nothing is near it")
        return np.asarray(row_D / norm, dtype=np.float32)[None, :]


class CompactIndex(VectorIndex):
    """Approximate cosine search in a quarter of the memory; the same rules.

    Vectors are sorted into lists around centres learned from a sample, and kept as 8 bits an entry.
    A search looks into the nearest lists only. It can be written to a file and read again.
    """

    def __init__(self, trained: "faiss.IndexIVFScalarQuantizer", num_trained_for: int) -> None:
        super().__init__(trained.d)
        self._faiss = trained
        self._faiss.nprobe = max(MIN_SEARCHED, round(SEARCHED_SHARE * trained.nlist))
        self._ids = _ids_in(trained)
        self.num_trained_for = num_trained_for

    @classmethod
    def train(cls, sample_ND: Vectors, num_expected: int) -> "CompactIndex":
        """Return an empty index whose centres are learned from a sample.

        Args:
            sample_ND: float32 [N, D], ``num_sample`` of them or more.
            num_expected: how many vectors it is going to hold, about.

        Raises:
            VectorIndexError: The vectors are not [N, D], or one is not finite or zero.
        """
        dimension = sample_ND.shape[1]
        units_ND = unit_rows(sample_ND, dimension)
        quantizer = faiss.IndexFlatIP(dimension)
        kind = faiss.ScalarQuantizer.QT_8bit
        trained = faiss.IndexIVFScalarQuantizer(
            quantizer, dimension, num_lists(num_expected), kind, faiss.METRIC_INNER_PRODUCT, False
        )
        trained.train(units_ND)
        return cls(trained, num_expected)

    def write(self, file: BinaryIO) -> None:
        """Write the index; it is searched meanwhile, and changes wait."""
        with self._changing:
            writer = faiss.PyCallbackIOWriter(file.write)  # type: ignore[attr-defined]
            faiss.write_index(self._faiss, writer)

    @classmethod
    def read(cls, file: BinaryIO, num_trained_for: int) -> "CompactIndex":
        """Read an index; the caller has made sure that the bytes are as they were written.

        Raises:
            VectorIndexError: They hold no index of this kind.
        """
        try:
            reader = faiss.PyCallbackIOReader(file.read)  # type: ignore[attr-defined]
            found = faiss.read_index(reader)
        except RuntimeError as error:
            raise VectorIndexError(f"cannot be read as an index: {error}") from error
        if not isinstance(found, faiss.IndexIVFScalarQuantizer):
            raise VectorIndexError(f"holds another kind of index: {type(found).__name__}")
        return cls(found, num_trained_for)


def num_lists(num_expected: int) -> int:
    """Return into how many lists a compact index of that many vectors is divided."""
    enough_to_train = num_expected // TRAINING_VECTORS_PER_LIST
    return max(1, min(int(LISTS_PER_ROOT * num_expected**0.5), enough_to_train))


def num_sample(num_expected: int) -> int:
    """Return how many vectors a compact index is trained on."""
    return min(num_expected, TRAINING_VECTORS_PER_LIST * num_lists(num_expected))


def unit_rows(vectors_ND: Vectors, dimension: int) -> Vectors:
    """Return the vectors at length 1.

    Raises:
        VectorIndexError: They are not [N, D], or one is not finite or zero.
    """
    if vectors_ND.ndim != 2 or vectors_ND.shape[1] != dimension:
        raise VectorIndexError(f"vectors have shape {vectors_ND.shape}, expected [N, {dimension}]")
    norms_N = np.linalg.norm(vectors_ND, axis=1)
    if not is_direction(norms_N).all():
        raise VectorIndexError("a vector is zero, or holds NaN or infinity")
    return np.ascontiguousarray(vectors_ND / norms_N[:, None], dtype=np.float32)


def is_direction(norms_N: Vectors) -> NDArray[np.bool_]:
    """Say which lengths are those of vectors that point somewhere."""
    return np.isfinite(norms_N) & (norms_N > 0.0)


def _ids_in(index: "faiss.IndexIVFScalarQuantizer") -> set[int]:
    lists = index.invlists
    assert lists is not None
    ids: set[int] = set()
    for number in range(index.nlist):
        if size := lists.list_size(number):
            ids.update(faiss.rev_swig_ptr(lists.get_ids(number), size).tolist())
    return ids
