"""What is to survive the death of this process until it stands in the database.

Two files take turns: entries are appended to one while the other drains. A file is emptied when
nothing in it is awaited any more: at once where answers come now and then, and after 1 MiB where
they come without a pause. Where the database takes nothing, both together hold 4 MiB. Appending is
one write into the page cache (9 us, measured), which the operating system keeps when the process is
killed; it does not outlive the machine.

An entry is its length, CRC-32 and number, then its bytes. One that was cut off ends its file.
It does not know what the entries say.
"""

import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)
HEAD = struct.Struct("<IIQ")  # length, CRC-32 of number and bytes, number
MAX_FILE_BYTES = 2**20
"""Past this the other file is used as soon as it is empty."""
MAX_ENTRY_BYTES = 2**18
"""A larger one is refused, about 24,000 tokens with their text: it would fill a file in no time."""


@dataclass(slots=True)
class _File:
    """One of the two files."""

    path: Path
    descriptor: int
    first_number: int = 0  # of its entries, if it has any
    size: int = 0  # up to the end of the last whole entry
    num_awaited: int = 0  # entries that have not been retired


class Journal:
    """Entries in two files; one thread appends, and one other retires and turns.

    Args:
        path: what the files' names begin with; ``-0`` and ``-1`` are appended.

    Raises:
        OSError: the files cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._files = [_open(path.with_name(f"{path.name}-{number}")) for number in (0, 1)]
        self._active = 0
        self._next_number = 0
        self._lock = threading.Lock()
        self._is_cleared = False  # what another process left has been taken up
        self._is_closed = False

    def left(self) -> list[bytes]:
        """Return the entries that another process left behind, in the order they came in."""
        found: dict[int, bytes] = {}
        for file in self._files:
            found |= dict(_entries(file.path.read_bytes()))
        return [found[number] for number in sorted(found)]

    def clear(self) -> None:
        """Forget what ``left`` returned; before the first entry is appended."""
        for file in self._files:
            os.ftruncate(file.descriptor, 0)
        self._is_cleared = True

    def append(self, entry: bytes) -> int | None:
        """Keep an entry until it is retired.

        Returns:
            By what to retire it. None: it is not kept, since it is too large, the files are full of
            what is awaited, or the disk refused it.
        """
        if len(entry) > MAX_ENTRY_BYTES:
            return None
        with self._lock:
            index = self._active
            file = self._files[index]
            if self._is_closed or not self._is_cleared or file.size >= 2 * MAX_FILE_BYTES:
                return None
            if not _written(file, _framed(entry, self._next_number)):
                return None
            if not file.size:
                file.first_number = self._next_number
            self._next_number += 1
            file.size += HEAD.size + len(entry)
            file.num_awaited += 1
        return index

    def retire(self, kept: Iterable[int]) -> None:
        """Let go of entries that stand in the database, by what ``append`` returned."""
        with self._lock:
            for index in kept:
                self._files[index].num_awaited -= 1
            active = self._files[self._active]
            is_done = active.num_awaited == 0 or active.size >= MAX_FILE_BYTES
            drained = self._drained(turn=is_done)
        self._empty(drained)

    def turn(self) -> None:
        """Append to the other file from now on, if it is empty; where ``retire`` is called."""
        with self._lock:
            drained = self._drained(turn=True)
        self._empty(drained)

    @property
    def next_number(self) -> int:
        """The number of the entry that comes next."""
        return self._next_number

    def holds_before(self, number: int) -> bool:
        """Say whether an entry of a lower number is still on disk, retired or not."""
        with self._lock:
            return any(file.size and file.first_number < number for file in self._files)

    def _drained(self, *, turn: bool) -> list[_File]:
        """Change files if wanted and possible; return those to be emptied. Under the lock."""
        if turn and self._files[1 - self._active].size == 0:
            self._active = 1 - self._active
        other = self._files[1 - self._active]
        return [other] if other.size and other.num_awaited == 0 else []

    def close(self) -> None:
        """Close the files, which hold what has not been retired."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for file in self._files:
                if file.num_awaited == 0 and self._is_cleared:
                    file.path.unlink(missing_ok=True)
                os.close(file.descriptor)

    def _empty(self, drained: Iterable[_File]) -> None:
        """Empty files that nobody appends to; one that cannot be emptied is tried again later.

        Not under the lock: the disk may take its time.
        """
        for file in drained:
            try:
                os.ftruncate(file.descriptor, 0)
            except OSError as error:
                log.warning("%s cannot be emptied: %s", file.path.name, error)
                continue
            with self._lock:
                file.size = 0


def _open(path: Path) -> _File:
    return _File(path=path, descriptor=os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _written(file: _File, frame: bytes) -> bool:
    """Append a frame; of one that does not fit nothing stays."""
    try:
        if os.pwrite(file.descriptor, frame, file.size) == len(frame):
            return True
    except OSError as error:
        log.warning("%s cannot be written: %s", file.path.name, error)
    with suppress(OSError):
        os.ftruncate(file.descriptor, file.size)
    return False


def _framed(entry: bytes, number: int) -> bytes:
    return HEAD.pack(len(entry), _checksum(entry, number), number) + entry


def _checksum(entry: bytes, number: int) -> int:
    return zlib.crc32(entry, number & 0xFFFFFFFF)


def _entries(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the whole entries of a file with their numbers, up to the first that is not whole."""
    at = 0
    while at + HEAD.size <= len(content):
        length, checksum, number = HEAD.unpack_from(content, at)
        entry = content[at + HEAD.size : at + HEAD.size + length]
        if len(entry) < length or _checksum(entry, number) != checksum:
            return
        yield number, entry
        at += HEAD.size + length
