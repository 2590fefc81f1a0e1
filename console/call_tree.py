"""The calls of an episode as a tree, a line a call.

What goes on below a call stays in its column; what branches off is indented. Knows the calls as the
service sends them, and nothing of how they came to be.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Call = Mapping[str, Any]
COLUMNS = ("CALL", "PARENT", "why here", "STATUS", "ADAPTER", "TOKENS", "learnable")
BRANCH = "└ "
GOES_ON = ("continuation", "rerendered", "compaction")


def tree_rows(calls: Sequence[Call]) -> list[tuple[Any, ...]]:
    """Return the rows of a table with ``COLUMNS``, each branch before what goes on beside it."""
    return [
        (
            BRANCH * depth + call["id"],
            call["parent"],
            call.get("edge") or "begins",
            call["status"],
            call["adapter"],
            token_counts(call),
            learnable(call),
        )
        for depth, call in _walk(calls)
    ]


def token_counts(call: Call) -> str:
    """Return ``12 + 5``: prompt and completion tokens; ``?`` where the engine reported no ids."""
    counts = (call.get("prompt_token_ids"), call.get("completion_token_ids"))
    return " + ".join("?" if ids is None else str(len(ids)) for ids in counts)


def learnable(call: Call) -> str:
    """Return ``yes``, why not, or how many tokens and why not the rest."""
    if call["not_learnable_reason"]:
        return str(call["not_learnable_reason"])
    fates = dict(call.get("token_fates") or {})
    num_trained = fates.pop("trained", 0)
    if not fates:
        return "yes"
    return f"{num_trained} tokens; not " + ", ".join(f"{n} {why}" for why, n in fates.items())


def _walk(calls: Sequence[Call]) -> Iterator[tuple[int, Call]]:
    """Yield each call with its depth, parents first."""
    known = {call["id"] for call in calls}
    below: dict[str | None, list[Call]] = defaultdict(list)
    for call in calls:
        below[call["parent"] if call["parent"] in known else None].append(call)
    waiting = [(0, call) for call in reversed(below.pop(None, []))]
    while waiting:
        depth, call = waiting.pop()
        yield depth, call
        children = below.pop(call["id"], [])
        heir = next((one for one in children if one.get("edge") in (None, *GOES_ON)), None)
        branches = [one for one in children if one is not heir]
        if heir is not None:
            waiting.append((depth, heir))
        waiting += [(depth + 1, one) for one in reversed(branches)]
