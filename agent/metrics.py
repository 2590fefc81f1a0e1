"""Prometheus metrics of answering; ``GET /metrics`` shows them."""

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("denizen_requests", "Chat completions by how they ended", ["status"])
FIRST_BYTE = Histogram(
    "denizen_first_byte_seconds",
    "Time from a request's arrival to the first byte of its answer, the engine's time included;"
    " for an answer that is not streamed the whole of it",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
IN_FLIGHT = Gauge("denizen_requests_in_flight", "Requests being answered, records included")
REJECTED = Counter("denizen_requests_rejected", "Requests refused because too many were in flight")
RECORD_SECONDS = Histogram(
    "denizen_record_seconds",
    "How long the end of an answer waited for its record to be in the file",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5),
)
RECORDS_WAITING = Gauge("denizen_records_waiting", "Answers whose record is not in the file yet")
RECORDS = Counter("denizen_records", "Calls that were recorded, by status", ["status"])
RECORDS_TEXT_ONLY = Counter(
    "denizen_records_text_only",
    "Complete calls that were recorded without what learning needs, by what the engine left out",
    ["reason"],
)
WAL_BYTES = Gauge(
    "denizen_wal_bytes", "Size of the database's write-ahead log; it grows while a reader needs it"
)
RECORDS_DROPPED = Counter("denizen_records_dropped", "Answered calls that could not be recorded")
RECALLED = Counter(
    "denizen_memory_recalled", "Conversations that got recalled text into their prompt"
)
RECALLS_MISSED = Counter(
    "denizen_memory_recall_missed",
    "Requests that asked for recalled text and went on without, by reason",
    ["reason"],
)
UNLOAD_FAILURES = Counter(
    "denizen_unload_failures", "Unloads that an engine did not answer in time, or failed at"
)
