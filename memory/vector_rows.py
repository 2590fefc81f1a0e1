"""Rows of ``vectors``: those of one embedder, read in chunks, by id and by tenant.

Vectors of another embedder or another size are left out.

Axes: ``N`` vectors, ``D`` dimensions.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from memory.database import Database
from memory.index import Ids, Vectors, is_direction

CHUNK = 4_096  # rows read at once
MAX_ID = 2**63 - 1  # of SQLite
Row: TypeAlias = dict[str, Any]
"""``id`` and ``vector``, as bytes; where a row is looked for, also ``episode_id``."""


class VectorRows:
    """Reads the rows of an embedder, ``D`` of which is ``dimension``."""

    def __init__(self, database: Database, *, embedder_id: str, dimension: int) -> None:
        self._db = database
        self._dimension = dimension
        self._kind = embedder_id, dimension * np.dtype("<f4").itemsize

    def newest_id(self) -> int:
        """Return the highest id that was ever given to a row, of any embedder."""
        found = self._db.read("SELECT seq FROM sqlite_sequence WHERE name = 'vectors'")
        return int(found[0]["seq"]) if found else 0

    def ids(self) -> Iterator[int]:
        """Yield the ids of all rows, in order."""
        sql = """SELECT id FROM vectors WHERE embedder = ? AND length(vector) = ? AND id > ?
            ORDER BY id LIMIT ?"""
        last = 0
        while found := self._db.read(sql, (*self._kind, last, 8 * CHUNK)):
            yield from (row["id"] for row in found)
            last = found[-1]["id"]

    def chunks(
        self, *, after: int = 0, until: int = MAX_ID, stride: int = 1
    ) -> Iterator[list[Row]]:
        """Yield the rows whose ids lie past ``after`` up to ``until``, and divide by a stride."""
        sql = """SELECT id, vector FROM vectors WHERE embedder = ? AND length(vector) = ?
            AND id > ? AND id <= ? AND id % ? = 0 ORDER BY id LIMIT ?"""
        while found := self._db.read(sql, (*self._kind, after, until, stride, CHUNK)):
            yield found
            after = found[-1]["id"]

    def by_id(self, ids: Sequence[int]) -> list[Row]:
        """Return the rows of ids that are known to be the embedder's."""
        marks = ", ".join("?" * len(ids))
        return self._db.read(f"SELECT id, vector FROM vectors WHERE id IN ({marks})", tuple(ids))

    def of_candidates(self, ids: Sequence[int], tenant: str | None) -> list[Row]:
        """Return what is left of the rows of ids, the tenant's own."""
        if not ids:
            return []
        marks = ", ".join("?" * len(ids))
        sql = f"""SELECT v.id, episode_id, vector FROM vectors v JOIN episodes e
            ON e.id = episode_id WHERE v.id IN ({marks}) AND embedder = ? AND length(vector) = ?
            AND tenant IS ?"""
        return self._db.read(sql, (*ids, *self._kind, tenant))

    def of_tenant(self, tenant: str | None) -> list[Row]:
        """Return all rows of a tenant."""
        sql = """SELECT v.id, episode_id, vector FROM episodes e JOIN vectors v
            ON v.episode_id = e.id WHERE tenant IS ? AND embedder = ? AND length(vector) = ?"""
        return self._db.read(sql, (tenant, *self._kind))

    def vectors(self, rows: Sequence[Row]) -> Vectors:
        """Return the vectors of rows, [N, D]."""
        joined = b"".join([row["vector"] for row in rows])
        return np.frombuffer(joined, dtype="<f4").astype(np.float32).reshape(-1, self._dimension)

    def directions(self, rows: Sequence[Row]) -> tuple[Ids, Vectors]:
        """Return the ids and vectors of those rows that point somewhere, [N] and [N, D]."""
        vectors_ND = self.vectors(rows)
        ids_N = np.array([row["id"] for row in rows], dtype=np.int64)
        good_N = is_direction(np.linalg.norm(vectors_ND, axis=1))
        return ids_N[good_N], vectors_ND[good_N]
