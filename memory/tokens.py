"""Token ids and log-probabilities as compact blobs, and back, without loss of meaning.

Ids are little-endian unsigned 32-bit integers; log-probabilities are little-endian 32-bit floats in
which NaN stands for "unknown" inside the blob only: readers see ``None``.
"""

import math
from collections.abc import Sequence

import numpy as np

_IDS = np.dtype("<u4")
_LOGPROBS = np.dtype("<f4")


def encode_ids(ids: Sequence[int] | None) -> bytes | None:
    """Encode token ids, [L] -> 4·L bytes; None stays None."""
    return None if ids is None else np.asarray(ids, dtype=_IDS).tobytes()


def decode_ids(blob: bytes | None) -> tuple[int, ...] | None:
    """Invert ``encode_ids``."""
    return None if blob is None else tuple(np.frombuffer(blob, dtype=_IDS).tolist())


def encode_logprobs(logprobs: Sequence[float | None] | None) -> bytes | None:
    """Encode log-probabilities, [L] -> 4·L bytes; an unknown or non-finite one becomes NaN."""
    if logprobs is None:
        return None
    known = [math.nan if value is None else value for value in logprobs]
    return np.asarray(known, dtype=_LOGPROBS).tobytes()


def decode_logprobs(blob: bytes | None) -> tuple[float | None, ...] | None:
    """Invert ``encode_logprobs``, to float32 precision; what is not finite reads as None."""
    if blob is None:
        return None
    values = np.frombuffer(blob, dtype=_LOGPROBS).tolist()
    return tuple(value if math.isfinite(value) else None for value in values)
