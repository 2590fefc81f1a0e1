"""The engine's output: a file that stays bounded, and the last lines in memory."""

import asyncio
import contextlib
from collections import deque
from pathlib import Path

LOG_LIMIT_BYTES = 20_000_000
KEPT_LINES = 400
"""A traceback through vLLM's processes takes some 150 lines after the one that names the cause."""


class EngineLog:
    """Appends output to a file of ``LOG_LIMIT_BYTES``; the full one before it is kept as ``.1``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)  # of the present run

    async def follow(self, stream: asyncio.StreamReader) -> None:
        """Copy the output of one run until it ends."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lines.clear()
        pending = b""
        while chunk := await stream.read(65536):
            with contextlib.suppress(OSError):  # a full disk; the pipe must be read all the same
                self._append(chunk)
            *lines, pending = (pending + chunk).split(b"\n")
            self.lines.extend(line.decode(errors="replace")[:500] for line in lines)
            pending = pending[-65536:]
        if pending:
            self.lines.append(pending.decode(errors="replace")[:500])

    def _append(self, chunk: bytes) -> None:
        if self.path.exists() and self.path.stat().st_size > LOG_LIMIT_BYTES:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        with self.path.open("ab") as file:
            file.write(chunk)
