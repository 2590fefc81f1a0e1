"""Measures how well interleaved sessions without any header are told apart, and what is learned.

``python -m bench.sessions`` runs 200 sessions of four kinds of agent programs at once through the
whole service over the fake engine, and prints one JSON object: the pairwise F1 of the assignment of
calls to episodes, the share of sampled tokens that reach training rows by kind of program, and why
the rest does not. It takes about half a minute on two cores.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.harnesses import LINEAR, SHAPES, Message, Model
from learner.trees import TRAINED, TreeRows, rows_of_tree
from memory.store import Store
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread
from tests.tiny_model import VOCAB_SIZE, save_tiny_model

AT_ONCE = 200  # sessions; each waits for its own answer before it goes on


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """One call as the script knows it, and where the service put it."""

    call_id: str
    episode_id: str
    session: int
    shape: str


def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        with redirect_stdout(sys.stderr):  # the service says there that it is ready
            report = run(Path(folder), options.sessions, options.seed)
        print(json.dumps(report, indent=2))


def run(folder: Path, num_sessions: int, seed: int) -> dict[str, Any]:
    """Run the sessions over a service with a home of its own; return the report."""
    root = save_tiny_model(folder / "model")
    (folder / "home").mkdir()
    with (
        FakeEngine(vocab_size=VOCAB_SIZE, root=str(root), answer=Model(seed)) as engine,
        ServiceThread(folder / "home", engine.url) as service,
    ):
        engine.max_model_len = 100_000
        began = time.perf_counter()
        sent = asyncio.run(_talk(str(service.http.base_url), num_sessions, seed))
        took_s = time.perf_counter() - began
        trees = _trees(service.parts.store, sent)
    return {
        "num_sessions": num_sessions,
        "num_calls": len(sent),
        "calls_per_s": round(len(sent) / took_s),
        "assignment": pairwise([one.session for one in sent], [one.episode_id for one in sent]),
        "tokens": _tokens(sent, trees),
    }


async def _talk(url: str, num_sessions: int, seed: int) -> list[Sent]:
    """Run all sessions at once; return their calls in the order of the answers."""
    sent: list[Sent] = []
    limits = httpx.Limits(max_connections=AT_ONCE, keepalive_expiry=2.0)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        shapes = list(SHAPES)

        async def session(number: int) -> None:
            shape = shapes[number % len(shapes)]

            async def ask(messages: Sequence[Message], **fields: Any) -> Message:
                body = {"model": "denizen", "messages": messages, **fields}
                response = await http.post("/v1/chat/completions", json=body)
                response.raise_for_status()
                sent.append(
                    Sent(
                        call_id=response.headers["x-denizen-call-id"],
                        episode_id=response.headers["x-denizen-episode-id"],
                        session=number,
                        shape=shape,
                    )
                )
                message = response.json()["choices"][0]["message"]
                return {
                    key: message[key]
                    for key in ("role", "content", "tool_calls")
                    if message.get(key)
                }

            await SHAPES[shape](ask, random.Random(f"{seed}-{number}"))

        await asyncio.gather(*(session(number) for number in range(num_sessions)))
    return sent


def _trees(store: Store, sent: Sequence[Sent]) -> list[TreeRows]:
    ids = dict.fromkeys(one.episode_id for one in sent)
    return [rows_of_tree(store.episodes.calls(id), group_id=id) for id in ids]


def pairwise(truth: Sequence[object], found: Sequence[object]) -> dict[str, float]:
    """Return precision, recall and F1 over the pairs of calls that are put together."""
    pairs = [
        sum(n * (n - 1) // 2 for n in Counter(labels).values())
        for labels in (zip(truth, found, strict=True), found, truth)
    ]
    both, together, same = pairs
    precision, recall = both / max(together, 1), both / max(same, 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-12)
    return {"precision": round(precision, 4), "recall": round(recall, 4), "f1": round(f1, 4)}


def _tokens(sent: Sequence[Sent], trees: Sequence[TreeRows]) -> dict[str, Any]:
    """Return how many sampled tokens reach rows, by shape, and why the rest does not."""
    shape_of = {one.call_id: one.shape for one in sent}
    accounts: Mapping[str, Counter[str]] = defaultdict(Counter)
    for tree in trees:
        for call_id, fate in tree.fates.items():
            accounts[shape_of[call_id]].update(fate)
    total = sum(accounts.values(), Counter())
    return {
        "sampled": total.total(),
        "in_rows": sum(sum(row.loss_mask) for tree in trees for row in tree.rows),
        "num_rows": sum(len(tree.rows) for tree in trees),
        "share": _share(total),
        "share_linear": _share(sum((accounts[shape] for shape in LINEAR), Counter())),
        "share_by_shape": {shape: _share(accounts[shape]) for shape in SHAPES},
        "not_trained": {reason: n for reason, n in total.items() if reason != TRAINED},
        "trained": total[TRAINED],
    }


def _share(account: Counter[str]) -> float:
    return round(account[TRAINED] / max(account.total(), 1), 4)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sessions", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
