"""Looks at a database file without changing it: sound, of a known schema, and what it promises.

For a service that does not run; a running one is not disturbed. Nothing is migrated.
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import sqlite_utils

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


def look_at(file: Path) -> Checkup:
    """Check a database's pages and schema, and list its adapter versions.

    Raises:
        StoreError: it is no database, is damaged, or was written by a newer Denizen.
    """
    try:
        with closing(
            sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StoreError(f"{file} is damaged: {found}")
            return _read(sqlite_utils.Database(connection), file)
    except (sqlite3.Error, ValueError) as error:
        raise StoreError(f"{file} cannot be read: {error}") from error


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
