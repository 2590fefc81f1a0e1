"""Records to database rows and back, driven by the record's own annotations.

Instants become ISO 8601 text, enums their value, mappings and sequences JSON, booleans 0 or 1.
Token blobs are the business of ``memory/tokens.py``; the calls' store sets them itself.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar

import orjson
import sqlite_utils

R = TypeVar("R")
PLAIN = {str, int, float, bytes, type(None)}  # SQLite stores these as they are


def encode(record: Any, *, skip: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return the record's fields as SQLite values, keyed by column."""
    names, values_of = _fields(typing.cast(Any, type(record)), skip)
    return {
        name: value if type(value) in PLAIN else encode_value(value)
        for name, value in zip(names, values_of(record), strict=True)
    }


def encode_value(value: Any) -> Any:
    """Return one value as SQLite stores it."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Mapping | list | tuple):
        return orjson.dumps(value).decode()
    return value


def decode(cls: type[R], row: Mapping[str, Any]) -> R:
    """Build a record from a row; columns that the record does not have are left out."""
    decoders = _decoders(typing.cast(Any, cls))
    return cls(
        **{
            name: decoder(row[name]) if row[name] is not None else None
            for name, decoder in decoders.items()
            if name in row
        }
    )


def insert(db: sqlite_utils.Database, table: str, row: Mapping[str, Any]) -> None:
    """Insert one row; a duplicate key is an ``sqlite3.IntegrityError``."""
    columns = ", ".join(f'"{name}"' for name in row)
    marks = ", ".join("?" * len(row))
    db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", tuple(row.values()))


def insert_all(
    db: sqlite_utils.Database, table: str, rows: Sequence[Mapping[str, Any]], or_else: str = ""
) -> None:
    """Insert rows of the same columns.

    Args:
        db: the connection inside a write.
        table: where to.
        rows: at least one.
        or_else: what a duplicate key does, as SQL; without, it is an ``sqlite3.IntegrityError``.
    """
    columns = ", ".join(f'"{name}"' for name in rows[0])
    marks = ", ".join("?" * len(rows[0]))
    sql = f"INSERT INTO {table} ({columns}) VALUES ({marks}) {or_else}"
    db.conn.executemany(sql, [tuple(row.values()) for row in rows])


@cache
def _fields(
    cls: Any, skip: frozenset[str]
) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names of a record's fields, and what reads them all at once."""
    names = tuple(field.name for field in dataclasses.fields(cls) if field.name not in skip)
    return names, attrgetter(*names)


@cache
def _decoders(cls: Any) -> dict[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(cls)
    return {field.name: _decoder(hints[field.name]) for field in dataclasses.fields(cls)}


def _decoder(hint: Any) -> Callable[[Any], Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if hint is datetime:
        return datetime.fromisoformat
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if hint is bool:
        return bool
    origin = typing.get_origin(hint)
    if origin is Sequence:
        return lambda text: tuple(orjson.loads(text))
    if origin in (Mapping, dict):
        return orjson.loads
    return lambda value: value


def loads(text: str) -> Any:
    """Read a JSON column."""
    return orjson.loads(text)
