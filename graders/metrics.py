"""Prometheus metrics of judging; ``GET /metrics`` shows them."""

from prometheus_client import Counter, Gauge, Histogram

JUDGEMENTS = Counter(
    "denizen_judgements", "Judgements by what came of them: scored, or why not", ["result"]
)
UNREAD = Counter(
    "denizen_judge_unparsable", "Replies of a judge that were no verdict, by reason", ["reason"]
)
CALLS = Counter(
    "denizen_judge_calls", "Requests to the judge's model by how they ended", ["status"]
)
CALL_SECONDS = Histogram(
    "denizen_judge_call_seconds",
    "Time of one request to the judge's model",
    buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
TOKENS = Counter("denizen_judge_tokens", "Tokens that the judge's model read and wrote")
WAITING = Gauge("denizen_judge_waiting", "Answers that wait for a judge")
