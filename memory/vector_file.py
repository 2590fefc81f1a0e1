"""The file of a compact index, ``vectors.faiss``: written whole, and used only where it fits.

It is made again at a start that cannot use it. It does not know when to write it.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from memory.errors import DenizenError
from memory.index import CompactIndex, VectorIndexError

FILE_NAME = "vectors.faiss"
MAGIC = b"denizen vectors 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a file of vectors says of itself; all of it must fit, or the file is not used."""

    database: str
    embedder: str
    dimension: int
    last_id: int  # of the rows that it was made from
    num_trained_for: int


def write(path: Path, header: Header, index: CompactIndex) -> None:
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


def read(
    path: Path, *, database: str, embedder: str, dimension: int, newest_id: int
) -> tuple[CompactIndex, int]:
    """Return the index in a file, and the id of the last row that it knows.

    Raises:
        VectorIndexError: the file does not fit.
        OSError: it cannot be read.
    """
    why = problem(path, database=database, embedder=embedder, newest_id=newest_id)
    if why is not None:
        raise VectorIndexError(why)
    with path.open("rb") as file:
        header = _read_header(file)
        if header.dimension != dimension:
            raise VectorIndexError(f"it has {header.dimension} dimensions, not {dimension}")
        return CompactIndex.read(file, header.num_trained_for), header.last_id


def problem(path: Path, *, database: str, embedder: str, newest_id: int) -> str | None:
    """Say why a file would not be used at the next start; None: it would, or there is none."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file:
            header = _read_header(file)
            if (header.database, header.embedder) != (database, embedder):
                return "it belongs to another database or embedder"
            if header.last_id > newest_id:
                return "the database is older: it was restored from a backup"
            _check_digest(file)
    except (OSError, DenizenError) as error:
        return str(error)
    return None


def _read_header(file: BinaryIO) -> Header:
    if file.readline(len(MAGIC)) != MAGIC:
        raise VectorIndexError("it is no file of vectors of this Denizen")
    try:
        return Header(**json.loads(file.readline(4_096)))
    except (ValueError, TypeError) as error:
        raise VectorIndexError(f"its header cannot be read: {error}") from error


def _check_digest(file: BinaryIO) -> None:
    """Make sure that the rest of a file is as it was written."""
    size = os.fstat(file.fileno()).st_size - file.tell() - _DIGEST_BYTES
    digest = hashlib.sha256()
    left = max(size, 0)
    while left > 0 and (chunk := file.read(min(left, 1 << 20))):
        digest.update(chunk)
        left -= len(chunk)
    if size <= 0 or file.read(_DIGEST_BYTES) != digest.digest():
        raise VectorIndexError("it is damaged or incomplete")


class _Hashed:
    """A file that is hashed as it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, chunk: bytes) -> int:
        self.digest.update(chunk)
        return self._file.write(chunk)
