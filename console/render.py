"""How answers look: rich tables on a terminal, tab-separated lines in a pipe, JSON when asked for.

Knows shapes (rows, fields, instants, numbers) and no record. Text from models and users is shown
without control characters: it must not be able to drive a terminal.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

CONTROL_CHARACTERS = {code: None for code in [*range(32), *range(127, 160)] if code not in (9, 10)}
"""C0 and C1 without tab and newline; escape sequences begin with one of them."""

UNKNOWN = "-"

BAR_WIDTH = 50
"""Columns of a bar from 0 to 1; with its label and number it fits a terminal of 80."""


def on_terminal() -> bool:
    """Say whether a person reads standard output directly."""
    return sys.stdout.isatty()


def print_json(document: Any) -> None:
    """Print a document as the service sent it, indented."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def harmless(text: str) -> str:
    """Return ``text`` without the characters that a terminal acts on."""
    return text.translate(CONTROL_CHARACTERS)


def one_line(text: str | None, width: int = 60) -> str:
    """Return the text's words on one line of at most ``width`` characters."""
    line = " ".join(harmless(text or "").split())
    return line if len(line) <= width else line[: width - 1] + "…"


def content_text(content: Any) -> str | None:
    """Return a message's content as text; parts other than text are shown as JSON."""
    if content is None or isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False)


def instant(iso: str | None) -> str:
    """Show an ISO 8601 instant in local time, to the second."""
    if iso is None:
        return UNKNOWN
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}"


def cell(value: Any) -> str:
    """Show any JSON value in one cell: ``None`` is ``-``, a float has three decimals."""
    match value:
        case None | "":
            return UNKNOWN
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}"
        case str():
            return harmless(value)
        case [*items] if all(isinstance(item, str | int) for item in items):
            return ", ".join(cell(item) for item in items) or UNKNOWN
        case Mapping() | list():
            return harmless(json.dumps(value, ensure_ascii=False))
        case _:
            return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """Print rows under their column names; a column named in capitals is never shortened.

    In a pipe: one line a row, cells separated by tabs, the column names first.
    """
    cells = [[cell(value) for value in row] for row in rows]
    if not on_terminal():
        for line in [[column.lower() for column in columns], *cells]:
            print("\t".join(" ".join(value.split()) for value in line))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column.lower(), no_wrap=column.isupper(), overflow="fold")
    for line in cells:
        table.add_row(*(Text(value) for value in line))
    Console(highlight=False).print(table)


def print_bars(rows: Sequence[tuple[str, float | None]], *, title: str) -> None:
    """Plot numbers from 0 to 1, a bar a line; nothing in a pipe, whose tables have the numbers."""
    if not on_terminal() or all(value is None for _, value in rows):
        return
    from rich.bar import Bar
    from rich.console import Console
    from rich.table import Table

    grid = Table(title=title, title_justify="left", box=None, show_header=False)
    for label, value in rows:
        bar = "" if value is None else Bar(1.0, 0.0, value, width=BAR_WIDTH)
        grid.add_row(label, cell(value), bar)
    Console(highlight=False).print(grid)


def print_fields(fields: Mapping[str, Any]) -> None:
    """Print one record: a line a field, names in one column; ``*_at`` fields as local time."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        shown = instant(value) if name.endswith("_at") else cell(value)
        print(f"{name:{width}}  {shown}")


def print_record(record: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one record as fields, or as JSON."""
    if as_json:
        print_json(record)
    else:
        print_fields(record)


def print_more(command: str, after: str | None) -> None:
    """Say on a terminal how to see a list's next page."""
    if after is not None and on_terminal():
        print(f"More: {command} --after {after}")
