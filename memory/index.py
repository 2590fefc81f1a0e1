"""A vector index with ids: nearest neighbours by cosine.

A cache, never the truth: it lives in memory and is rebuilt from rows. Knows nothing of what the ids
stand for. Vectors are checked before faiss sees them: it answers some wrong input by ending the
process.

Axes: ``N`` vectors, ``D`` dimensions.
"""

import threading
from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from memory.embed import Vector
from memory.errors import DenizenError


class VectorIndexError(DenizenError, ValueError):
    """A vector that cannot be indexed or searched for."""

    code = "index_error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """One search result."""

    id: int
    similarity: float  # cosine, in [-1, 1]


class VectorIndex:
    """Exact cosine search over id-mapped vectors; one writer and many readers, by one lock.

    Vectors are kept at length 1, so that the inner product is the cosine.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._lock = threading.Lock()
        self._ids: set[int] = set()
        self._faiss = _empty(dimension)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: int) -> bool:
        return id in self._ids

    def add(self, id: int, vector_D: Vector) -> None:
        """Add a vector; the id's earlier vector is replaced.

        Raises:
            VectorIndexError: The vector is not [D], not finite, or zero; the index is unchanged.
        """
        row_1D = self._unit_row(vector_D, f"vector {id}")
        with self._lock:
            self._discard(id)
            self._faiss.add_with_ids(row_1D, np.array([id], dtype=np.int64))
            self._ids.add(id)

    def remove(self, id: int) -> bool:
        """Remove an id; return whether it was there."""
        with self._lock:
            return self._discard(id)

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
        ]

    def _discard(self, id: int) -> bool:
        if id not in self._ids:
            return False
        self._faiss.remove_ids(faiss.IDSelectorBatch(np.array([id], dtype=np.int64)))
        self._ids.discard(id)
        return True

    def _unit_row(self, vector_D: Vector, what: str) -> NDArray[np.float32]:
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


def _empty(dimension: int) -> "faiss.IndexIDMap":
    return faiss.IndexIDMap(faiss.IndexFlatIP(dimension))
