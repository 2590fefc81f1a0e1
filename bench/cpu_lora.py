"""Measures LoRA on vLLM's CPU path: base, stock operators and Denizen's plugin, in one run.

``python -m bench.cpu_lora`` starts the engine twice on this machine, with the plugin and without,
and prints one JSON object: tokens per second of base and of a rank-16 adapter on all linear layers
at 1, 16 and 64 concurrent requests, for a bare question and for one behind a passage as agents send
them (``--prompt-tokens``), their ratios, and how far answers in a mixed batch are from those alone.
Base and adapter take turns, so that both meet the same machine; of the rounds the median ratio
counts. It takes about twenty minutes on two cores; run nothing beside it.
"""

import argparse
import asyncio
import json
import os
import platform
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from agent.base_model import prepare_packaged_model
from agent.engine import EngineConfig, VllmProcess
from agent.policy import PolicyClient
from bench.adapters import write_adapter

CONCURRENCY = (1, 16, 64)
ADAPTERS = ("denizen-000001", "denizen-000002")
NUM_PROMPTS = 32
PASSAGE = "The ferry left the harbour at nine with its lamps lit and the mail on board. "
"""Said again and again until a prompt is long enough: what it says changes no speed."""

Messages = list[dict[str, str]]
Ask = Callable[[int], Messages]
Speeds = dict[int, list[dict[str, float]]]
"""Concurrency -> one entry per round: tokens per second of "base" and "adapter"."""


async def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        work = Path(folder)
        model = options.model or prepare_packaged_model(work / "models", _say)
        paths = {
            name: write_adapter(work / name, model, seed=seed)
            for seed, name in enumerate(ADAPTERS, start=1)
        }
        measured = {}
        for engine, switch in (("plugin", "1"), ("stock", "0")):
            # The stock operators take minutes for one round of 64 requests.
            rounds = options.rounds if engine == "plugin" else 1
            with _environment("DENIZEN_CPU_LORA", switch):
                _say(f"{engine} operators")
                measured[engine] = await _measure(model, paths, work, options, rounds)
    print(json.dumps(_report(measured, options), indent=2))


async def _measure(
    model: Path, paths: dict[str, Path], work: Path, options: argparse.Namespace, rounds: int
) -> dict[str, Any]:
    """Start one engine and measure it; the adapters take every slot."""
    config = EngineConfig(max_loras=len(paths), kv_cache_gib=1)
    engine = VllmProcess(config, model=model, log_path=work / "engine.log")
    await engine.start(_say)
    try:
        async with PolicyClient(engine.url, engine.api_key) as client:
            for name, path in paths.items():
                await client.load_adapter(name, path)
            gaps = await mixed_batch_gaps(client, NUM_PROMPTS)
            load = _Load(client, options.tokens)
            for name in ("base", *ADAPTERS):
                await load.warm_up(name)
            speeds = {
                prompt_tokens: await load.speeds(prompt_tokens, rounds)
                for prompt_tokens in options.prompt_tokens
            }
    finally:
        await engine.stop()
    return {"speeds": speeds, "gaps": gaps}


class _Load:
    """Requests of one shape, sent to one engine."""

    def __init__(self, client: PolicyClient, num_tokens: int) -> None:
        self._client = client
        self._num_tokens = num_tokens

    async def warm_up(self, model: str) -> None:
        """Answer a few requests that no figure counts."""
        await self._tokens_per_s(model, _question, 4)

    async def speeds(self, prompt_tokens: int, rounds: int) -> Speeds:
        """Measure base and adapter by turns, per concurrency, with prompts of that length."""
        ask = await self._asker(prompt_tokens)
        speeds = {}
        for concurrency in CONCURRENCY:
            _say(f"{concurrency} concurrent, prompts of {prompt_tokens} tokens")
            speeds[concurrency] = [
                {
                    "base": await self._tokens_per_s("base", ask, concurrency),
                    "adapter": await self._tokens_per_s(ADAPTERS[0], ask, concurrency),
                }
                for _ in range(rounds)
            ]
        return speeds

    async def _asker(self, prompt_tokens: int) -> Ask:
        """Return what writes questions of ``prompt_tokens`` tokens, or a few more."""
        bare = await self._prompt_tokens(_question(0))
        one = await self._prompt_tokens(_question(0, passages=1)) - bare
        passages = max(0, -(-(prompt_tokens - bare) // one))
        return partial(_question, passages=passages)

    async def _prompt_tokens(self, messages: Messages) -> int:
        body = {"model": "base", "messages": messages, "max_tokens": 1}
        return int((await self._client.chat(body))["usage"]["prompt_tokens"])

    async def _tokens_per_s(self, model: str, ask: Ask, concurrency: int) -> float:
        """Send ``concurrency`` requests at once; return the tokens that came in a second."""
        began = time.perf_counter()
        body = {
            "model": model,
            "max_tokens": self._num_tokens,
            "ignore_eos": True,
            "temperature": 1.0,
            "top_p": 1.0,  # vLLM sorts the vocabulary for any other, hiding what is compared
        }
        await asyncio.gather(
            *(
                self._client.chat(body | {"messages": ask(number), "cache_salt": _salt()})
                for number in range(concurrency)
            )
        )
        return concurrency * self._num_tokens / (time.perf_counter() - began)


async def mixed_batch_gaps(client: PolicyClient, num_prompts: int) -> dict[str, float]:
    """Return, per model, the largest first-token gap between alone and in a mixed batch.

    Every prompt is asked of the base model and of both adapters: one request at a time, then all
    of them at once. The gap is the difference of the chosen token's log-probability.

    Raises:
        RuntimeError: models that differ gave one answer: the measurement means nothing.
    """
    models = ("base", *ADAPTERS)
    wanted = [(model, number) for number in range(num_prompts) for model in models]
    alone = [await _first_token(client, *one) for one in wanted]
    if len(set(alone[: len(models)])) < len(models):
        raise RuntimeError(f"base and adapters do not differ when alone: {alone[: len(models)]}")
    mixed = await asyncio.gather(*(_first_token(client, *one) for one in wanted))
    gaps: dict[str, float] = {}
    for (model, _), before, after in zip(wanted, alone, mixed, strict=True):
        gaps[model] = max(gaps.get(model, 0.0), abs(before - after))
    return gaps


async def _first_token(client: PolicyClient, model: str, number: int) -> float:
    body = {
        "model": model,
        "messages": _question(number),
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": True,
        "cache_salt": _salt(),
    }
    answer = await client.chat(body)
    return float(answer["choices"][0]["logprobs"]["content"][0]["logprob"])


def _salt() -> str:
    """Return what makes a prompt be computed afresh, not read from the prefix cache."""
    return secrets.token_hex(8)


def _question(number: int, passages: int = 0) -> Messages:
    question = f"What is {number} times {number + 3}? Explain briefly."
    return [{"role": "user", "content": PASSAGE * passages + question}]


def _report(measured: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    plugin, stock = measured["plugin"]["speeds"], measured["stock"]["speeds"]
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
        "tokens_per_answer": options.tokens,
        "tokens_per_s_by_prompt_tokens": {
            str(length): _compared(plugin[length], stock[length]) for length in plugin
        },
        "largest_mixed_batch_gap": {name: one["gaps"] for name, one in measured.items()},
    }


def _compared(plugin: Speeds, stock: Speeds) -> dict[str, Any]:
    """Return medians over the rounds, and the ratios that matter."""
    return {
        str(n): {
            "base": _median(plugin[n], "base"),
            "plugin": _median(plugin[n], "adapter"),
            "stock": _median(stock[n], "adapter"),
            "plugin_of_base": round(
                statistics.median(one["adapter"] / one["base"] for one in plugin[n]), 3
            ),
            "plugin_of_stock": round(
                _median(plugin[n], "adapter") / _median(stock[n], "adapter"), 2
            ),
        }
        for n in CONCURRENCY
    }


def _median(rounds: Sequence[dict[str, float]], name: str) -> float:
    return round(statistics.median(one[name] for one in rounds), 1)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_lora", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the packaged model")
    parser.add_argument("--rounds", type=int, default=3, help="rounds with the plugin")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each answer")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        nargs="+",
        default=[45, 256],
        help="lengths of the prompts, in tokens; the least is that of a bare question",
    )
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
