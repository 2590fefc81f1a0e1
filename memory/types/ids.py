"""Ids and instants of records."""

import random
from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the present instant, UTC-aware."""
    return datetime.now(UTC)


def new_id(prefix: str) -> str:
    """Return an id that sorts by the millisecond it was made in: ``ep_0193a1c0b7f1-5c0f9a31``."""
    milliseconds = int(utc_now().timestamp() * 1000)
    return f"{prefix}_{milliseconds:012x}-{random.getrandbits(32):08x}"
