"""What an erasure looks for in files, kept while its rows go and its files are cleaned.

The rows are the only other place that tells it; once they are gone, a service that was killed could
not mask a log any more. So these texts stand in a file of their own, readable by the service's own
user for the seconds that the rest takes (longer only where a reader holds the write-ahead log open,
which then holds the same texts), and are overwritten before the file goes.
It does not know where texts come from.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import orjson

FOLDER = "erasing"


class NeedleFile:
    """The texts of one erasure.

    Args:
        home: the home folder.
        erasure_id: whose.
    """

    def __init__(self, home: Path, erasure_id: str) -> None:
        self._path = home / FOLDER / erasure_id

    def add(self, texts: Iterable[str]) -> None:
        """Keep texts; they are on disk when this returns.

        Raises:
            OSError: the disk takes nothing.
        """
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        lines = b"".join(orjson.dumps(text) + b"\n" for text in sorted(texts))
        with self._path.open("ab") as file:
            file.write(b"\n" + lines)  # what a kill cut off before ends here
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> set[str]:
        """Return what is kept; a line that a kill cut off is left out, as its rows are there."""
        found: set[str] = set()
        with suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                with suppress(orjson.JSONDecodeError):
                    found.add(orjson.loads(line))
        return found

    def destroy(self) -> None:
        """Overwrite the file and delete it."""
        with suppress(FileNotFoundError):
            with self._path.open("r+b") as file:
                file.write(bytes(self._path.stat().st_size))
                file.flush()
                os.fsync(file.fileno())
            self._path.unlink()
        with suppress(OSError):  # another erasure has not ended
            self._path.parent.rmdir()
