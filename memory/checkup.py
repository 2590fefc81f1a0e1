"""Looks at a database file without changing it: sound, of a known schema, and what it promises.

For a service that does not run; a running one is not disturbed. Nothing is migrated.
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sqlite_utils

from memory import vector_file
from memory.embed import Vector
from memory.errors import StoreError
from memory.schema import migrations
from memory.types import VersionStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class SealedVersion:
    """What the database says of an adapter version's files.

    Example:
        ``SealedVersion(id="denizen-000007", status=VersionStatus.LIVE, rank=16, sha256="9f…")``
    """

    id: str
    status: VersionStatus
    rank: int
    sha256: str  # of the weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkup:
    """What was found in a sound database."""

    num_pending: int  # migrations that the next start of the service applies
    versions: list[SealedVersion]  # oldest first


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordCheckup:
    """What was found in the rows of a sound database.

    Example:
        ``RecordCheckup(num_calls=812, unreadable=("chatcmpl-8c1",), orphans={}, num_vectors=80,
        without_vector={"empty text": 2}, some_without={"empty text": ("ep_0193-5c", …)},
        cache_problem=None)``
    """

    num_calls: int
    unreadable: tuple[str, ...]  # some calls whose base is not what they promise; as a rule none
    orphans: Mapping[str, int]  # rows of a table that refer to something that is not there
    num_vectors: int  # of the embedder in use
    without_vector: Mapping[str, int]  # reason -> episodes that cannot be found by likeness
    some_without: Mapping[str, tuple[str, ...]]  # reason -> ids of some of them
    cache_problem: str | None  # why ``vectors.faiss`` is made again at the next start


NAMED = 3
"""Episodes without a vector that are named, of each reason."""
_UNREADABLE = """
    SELECT c.id FROM calls c LEFT JOIN calls b ON b.id = c.base_id WHERE c.base_id IS NOT NULL AND (
        b.id IS NULL OR b.episode_id != c.episode_id OR b.rowid >= c.rowid
        OR 4 * coalesce(json_extract(c.shared, '$.tokens'), 0) >
            4 * coalesce(json_extract(b.shared, '$.tokens'), 0)
            + coalesce(length(b.prompt_token_ids), 0) + coalesce(length(b.completion_token_ids), 0)
        OR coalesce(json_extract(c.shared, '$.messages'), 0) >
            coalesce(json_extract(b.shared, '$.messages'), 0)
            + coalesce(json_array_length(b.request, '$.messages'), 0) + (b.message IS NOT NULL))
    LIMIT 5"""


def look_into(file: Path, *, embedder_id: str, dimension: int) -> RecordCheckup | None:
    """Check that the rows keep their promises; None where the schema is an older one.

    Reads all of it: a second for each gigabyte or so.

    Args:
        file: the database; ``vectors.faiss`` may lie beside it.
        embedder_id: whose vectors are in use.
        dimension: of that embedder; a vector of another size cannot be searched.

    Raises:
        StoreError: it cannot be read.
    """
    with _opened(file) as connection:
        db = sqlite_utils.Database(connection)
        if migrations.pending(db):
            return None
        [[num_calls]] = db.execute("SELECT COUNT(*) FROM calls")
        usable, without, some_without = _vectors(db, embedder_id, dimension)
        [[identity]] = db.execute("SELECT id FROM identity")
        [[newest]] = db.execute(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'vectors'"
        )
        return RecordCheckup(
            num_calls=num_calls,
            unreadable=tuple(str(id) for (id,) in db.execute(_UNREADABLE)),
            orphans=Counter(table for table, *_ in db.execute("PRAGMA foreign_key_check")),
            num_vectors=usable,
            without_vector=without,
            some_without=some_without,
            cache_problem=vector_file.problem(
                file.with_name(vector_file.FILE_NAME),
                database=identity,
                embedder=embedder_id,
                newest_id=newest,
            ),
        )


def _vectors(
    db: sqlite_utils.Database, embedder_id: str, dimension: int
) -> tuple[int, dict[str, int], dict[str, tuple[str, ...]]]:
    """Count the vectors that can be searched, and why other episodes, and which, have none."""
    without: Counter[str] = Counter()
    some: dict[str, tuple[str, ...]] = {}
    num_usable = 0
    for id, embedder, blob, missing in db.execute(
        "SELECT episode_id, embedder, vector, missing_reason FROM vectors ORDER BY id"
    ):
        if embedder != embedder_id:
            reason = f"embedded by {embedder}"
        elif blob is None:
            reason = missing or "no vector"
        elif len(blob) != 4 * dimension:
            reason = f"of {len(blob) / 4:g} dimensions, not {dimension}"
        elif _points_somewhere(np.frombuffer(blob, dtype="<f4")):
            num_usable += 1
            continue
        else:
            reason = "zero, or not finite"
        without[reason] += 1
        if without[reason] <= NAMED:
            some[reason] = (*some.get(reason, ()), id)
    return num_usable, dict(without), some


def _points_somewhere(vector_D: Vector) -> bool:
    return bool(np.isfinite(norm := np.linalg.norm(vector_D)) and norm > 0.0)


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    try:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection
    except (sqlite3.Error, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error


def look_at(file: Path) -> Checkup:
    """Check a database's pages, indexes and schema, and list its adapter versions.

    ``integrity_check`` also compares each index with its table, which ``quick_check`` does not: an
    index that lost an entry hides a row. It reads the whole file, and takes longer for that.

    Raises:
        StoreError: it is no database, is damaged, or was written by a newer Denizen.
    """
    with _opened(file) as connection:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise StoreError(f"{file} is damaged: {found}")
        return _read(sqlite_utils.Database(connection), file)


def versions_in(file: Path) -> list[SealedVersion]:
    """List a database's adapter versions, oldest first, without a look at its pages.

    Raises:
        StoreError: it cannot be read, or was written by a newer Denizen.
    """
    with _opened(file) as connection:
        return _read(sqlite_utils.Database(connection), file).versions


def _read(db: sqlite_utils.Database, file: Path) -> Checkup:
    pending = migrations.pending(db)
    known = {migration.name for migration in migrations.pending(sqlite_utils.Database(memory=True))}
    unknown = [one.name for one in migrations.applied(db) if one.name not in known]
    if unknown:
        raise StoreError(f"{file} was written by a newer Denizen, which knows {unknown[-1]}")
    versions = []
    if "adapter_versions" in db.table_names():
        sql = "SELECT id, status, rank, sha256 FROM adapter_versions ORDER BY id"
        versions = [
            SealedVersion(**row | {"status": VersionStatus(row["status"])}) for row in db.query(sql)
        ]
    return Checkup(num_pending=len(pending), versions=versions)
