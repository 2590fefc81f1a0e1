"""Prometheus metrics of answering; ``GET /metrics`` shows them."""

from prometheus_client import Counter, Histogram

REQUESTS = Counter("denizen_requests", "Chat completions by how they ended", ["status"])
FIRST_BYTE = Histogram(
    "denizen_first_byte_seconds",
    "Time from a request's arrival to the first byte of its answer, the engine's time included;"
    " for an answer that is not streamed the whole of it",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
RECORDS = Counter("denizen_records", "Calls that were recorded, by status", ["status"])
RECORDS_DROPPED = Counter("denizen_records_dropped", "Answered calls that could not be recorded")
UNLOAD_FAILURES = Counter(
    "denizen_unload_failures", "Unloads that an engine did not answer in time, or failed at"
)
