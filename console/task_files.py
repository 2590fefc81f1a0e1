"""Task files on their way to the service: one JSON object a line, sent in bounded batches.

Checks only what makes a line a task at all; what a task may hold is the service's to judge.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from console.client import ServiceClient

Task: TypeAlias = dict[str, Any]
"""A task as it travels: ``{"prompt": "3 * 4 = ?", "reference": "12", "grader": "contains"}``."""

BATCH_SIZE_BYTES = 1_000_000
"""Well inside what the service reads of one body."""


class TaskFileError(ValueError):
    """A line of a task file is no task; the message says which and why."""


def read_tasks(file: Path) -> list[list[Task]]:
    """Return the file's tasks in batches of about ``BATCH_SIZE_BYTES``; blank lines are skipped.

    The whole file is read before anything is sent, so that a bad line imports nothing.

    Raises:
        TaskFileError: a line is no JSON object with ``prompt`` or ``messages``, or there is none.
    """
    batches: list[list[Task]] = []
    room_bytes = 0
    for number, line in enumerate(_read_lines(file), start=1):
        if not line.strip():
            continue
        size_bytes = len(line.encode())
        if size_bytes > room_bytes:
            batches.append([])
            room_bytes = BATCH_SIZE_BYTES
        room_bytes -= size_bytes
        batches[-1].append(parse_task(line, where=f"{file}:{number}"))
    if not batches:
        raise TaskFileError(f"{file} holds no task")
    return batches


def _read_lines(file: Path) -> list[str]:
    # Not splitlines(): it would also split at U+2028, which JSON strings may hold.
    try:
        return file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise TaskFileError(f"{file} is no UTF-8 text: {error}") from error


def parse_task(line: str, *, where: str) -> Task:
    """Read one line; ``where`` (``tasks.jsonl:7``) begins the message when it is no task."""
    try:
        task = json.loads(line)
    except ValueError as error:
        raise TaskFileError(f"{where} is no JSON: {error}") from error
    if not isinstance(task, dict) or not ("prompt" in task or "messages" in task):
        raise TaskFileError(f'{where} is no JSON object with "prompt" or "messages"')
    return task


def import_batches(
    client: "ServiceClient", batches: Sequence[list[Task]], *, show_progress: bool
) -> dict[str, int]:
    """Send every batch and return the service's counts, added up."""
    from rich.progress import Progress

    counts: dict[str, int] = {}
    with Progress(disable=not show_progress, transient=True) as progress:
        bar = progress.add_task("importing", total=sum(len(batch) for batch in batches))
        for batch in batches:
            for name, count in client.post("tasks", body={"tasks": batch}).items():
                counts[name] = counts.get(name, 0) + count
            progress.advance(bar, len(batch))
    return counts
