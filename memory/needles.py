"""Texts that must not be found in any file: which, and where they stand in bytes.

They are looked for all at once: eight bytes of each place are hashed, and what the hash does not
rule out is compared. It does not know what becomes of a place.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import orjson

MIN_NEEDLE, MAX_NEEDLE = 12, 200
"""Characters of a text that is looked for; shorter ones stand in other texts as well."""
MIN_WORD = 16  # of a word that is looked for by itself
NAMING = frozenset({"model", "role", "type", "id", "tool_call_id"})
"""Fields of a request whose values are a protocol's own words."""
HEAD_BYTES = 8
HASH_BITS = 20
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: 2^64 over the golden ratio

_ESCAPED = re.compile(r'["\\\x00-\x1f]+')


def needles_of(text: str) -> set[str]:
    """Return what to look for of a text: its lines and long words, where JSON escapes nothing."""
    runs = (run.strip()[:MAX_NEEDLE] for run in _ESCAPED.split(text))
    words = (word[:MAX_NEEDLE] for word in text.split() if not _ESCAPED.search(word))
    return {run for run in runs if len(run) >= MIN_NEEDLE} | {
        word for word in words if len(word) >= MIN_WORD
    }


def needles_of_json(text: str | None) -> set[str]:
    """Return what to look for of the texts inside a JSON value; names of fields are none."""
    found: set[str] = set()
    left: list[Any] = [] if text is None else [orjson.loads(text)]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [inner for name, inner in value.items() if name not in NAMING]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str):
            inner = _parsed(value)
            if inner is None:
                found |= needles_of(value)
            else:  # a tool call's arguments
                left.append(inner)
    return found


def _parsed(text: str) -> Any:
    if text[:1] not in {"{", "["}:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


class Needles:
    """Finds many texts in one pass.

    Example:
        ``[*Needles([b"a secret text"]).places(b"this is a secret text.")]`` is
        ``[(8, b"a secret text")]``.

    Args:
        wanted: each of eight bytes at least.
    """

    def __init__(self, wanted: Collection[bytes]) -> None:
        self._by_head: dict[bytes, list[bytes]] = defaultdict(list)
        for needle in sorted(wanted, key=len, reverse=True):
            self._by_head[needle[:HEAD_BYTES]].append(needle)
        self._may_begin = np.zeros(2**HASH_BITS, dtype=bool)
        self._may_begin[_hashed(b"".join(self._by_head), 0)] = True
        self.longest = max((len(needle) for needle in wanted), default=0)

    def places(self, content: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield where one begins, in order; of those that begin at one place, the longest."""
        for at in self._candidates(content):
            head = content[at : at + HEAD_BYTES]
            for needle in self._by_head.get(head, ()):
                if content.startswith(needle, at):
                    yield at, needle
                    break

    def _candidates(self, content: bytes) -> list[int]:
        found = [
            np.flatnonzero(self._may_begin[_hashed(content, offset)]) * HEAD_BYTES + offset
            for offset in range(HEAD_BYTES)
        ]
        return [int(at) for at in np.sort(np.concatenate(found))]


def _hashed(content: bytes, offset: int) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Return a hash of every eight bytes of a content from an offset on, none overlapping."""
    num = max(0, len(content) - offset) // HEAD_BYTES
    if not num:
        return np.zeros(0, dtype=np.uint64)
    words = np.frombuffer(content, dtype="<u8", count=num, offset=offset)
    return (words * MULTIPLIER) >> np.uint64(64 - HASH_BITS)
