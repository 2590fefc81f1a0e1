"""Measures what answering through Denizen costs, beside going direct and LiteLLM's proxy.

``python -m bench.gateway`` starts an engine that costs nothing (``bench/fake_upstream.py``: 5 ms to
an answer of 16 tokens), a service over a temporary home with recording on, and LiteLLM's proxy, and
prints one JSON object. The engine and the load are pinned to one core, the gateway under test to
another. It takes about five minutes, needs two cores to itself, and uses loopback only;
``--no-litellm`` leaves the comparison out (and the download of its packages, the first time).

Added latency is the difference of the same quantile through the gateway and direct. The streams
arrive evenly, so many a second that 500 run at any time; those that arrive once 500 run are timed.
"""

import argparse
import asyncio
import gc
import json
import os
import platform
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import save_file

from bench import litellm_proxy
from bench.load import Client, Outcome, Reply, closed_loop, open_loop, quantile

LOAD_CORE, GATEWAY_CORE = 0, 1
DELAY_MS = 5.0
CHUNKS = 100
NUM_STREAMS = 500
NUM_CLIENTS = 64
LITELLM_RATE = 20.0  # requests a second; it takes about 95
LITELLM_CLIENTS = 16
START_TIMEOUT_S = 120.0
REST_CPU_S = 0.05  # in a second: whoever uses less has started


def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _options()
    python = None if options.no_litellm else litellm_proxy.install()
    os.sched_setaffinity(0, {LOAD_CORE})
    gc.disable()  # a pause of the load generator would look like the gateway's
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as name, ExitStack() as running:
        folder = Path(name)
        engine_url = running.enter_context(_engine(folder, options.interval_ms))
        direct = asyncio.run(_measure(engine_url, options))
        with _denizen(folder, engine_url) as url:
            denizen = asyncio.run(_measure(url, options))
        denizen["records"] = _records(folder / "home/denizen.db")
        litellm = None
        if python is not None:
            with _litellm(python, folder, engine_url) as url:
                litellm = asyncio.run(_measure_litellm(url, options))
    print(json.dumps(_report(options, direct, denizen, litellm), indent=2))


async def _measure(url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one server: latency at two rates, throughput, many streams."""
    client = Client(url)
    await client.warm(NUM_CLIENTS)
    found: dict[str, Any] = {}
    for rate in (100.0, LITELLM_RATE):
        found[f"at_{rate:.0f}_per_s"] = await _latency(client, rate, options.seconds)
    found["plain"] = await _throughput(client, NUM_CLIENTS, options.seconds)
    found["streams"] = await _streams(client, options.interval_ms)
    client.close()
    return found


async def _measure_litellm(url: str, options: argparse.Namespace) -> dict[str, Any]:
    client = Client(url)
    await client.warm(LITELLM_CLIENTS)
    await closed_loop(client.ask, num_clients=2, seconds=2.0)  # it loads much at first use
    name = f"at_{LITELLM_RATE:.0f}_per_s"
    found: dict[str, Any] = {name: await _latency(client, LITELLM_RATE, options.seconds)}
    found["plain"] = await _throughput(client, LITELLM_CLIENTS, options.seconds)
    client.close()
    return found


async def _latency(client: Client, rate: float, seconds: float) -> dict[str, Any]:
    return _timed(await open_loop(client.ask, rate=rate, seconds=seconds, warm_up_s=2.0))


async def _throughput(client: Client, num_clients: int, seconds: float) -> dict[str, Any]:
    outcome, rate = await closed_loop(client.ask, num_clients=num_clients, seconds=seconds)
    return _counted(outcome) | {"per_s": round(rate, 1), "num_clients": num_clients}


async def _streams(client: Client, interval_ms: float) -> dict[str, Any]:
    """Keep ``NUM_STREAMS`` streams running and time the first chunk of those that join them."""
    lasts_s = (DELAY_MS + (CHUNKS - 1) * interval_ms) / 1000
    await client.warm(NUM_STREAMS)

    def ask() -> Any:
        return client.ask(num_tokens=CHUNKS, stream=True)

    def first(reply: Reply) -> float | None:
        return reply.first_event_at

    outcome = await open_loop(
        ask, rate=NUM_STREAMS / lasts_s, seconds=2 * lasts_s, warm_up_s=lasts_s, moment=first
    )
    return _timed(outcome) | {"chunks_per_s": round(NUM_STREAMS * CHUNKS / lasts_s)}


def _counted(outcome: Outcome) -> dict[str, Any]:
    return {
        "num_ok": outcome.num_ok,
        "num_refused": outcome.num_refused,
        "num_failed": outcome.num_failed,
    }


def _timed(outcome: Outcome) -> dict[str, Any]:
    p50, p99 = (quantile(outcome.seconds, share) for share in (0.5, 0.99))
    milliseconds = {"p50_ms": _ms(p50), "p99_ms": _ms(p99), "num_timed": len(outcome.seconds)}
    return _counted(outcome) | milliseconds


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)


def _report(
    options: argparse.Namespace,
    direct: dict[str, Any],
    denizen: dict[str, Any],
    litellm: dict[str, Any] | None,
) -> dict[str, Any]:
    answered = sum(one["num_ok"] for one in denizen.values() if isinstance(one, dict))
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
        "load_before": os.getloadavg()[0],
        "engine": {
            "delay_ms": DELAY_MS,
            "num_tokens": 16,
            "stream_interval_ms": options.interval_ms,
        },
        "direct": direct,
        "denizen": denizen,
        "litellm": litellm or "left out (--no-litellm)",
        "denizen_adds": _added(direct, denizen),
        "litellm_adds": _added(direct, litellm) if litellm else None,
        "lost_records": answered - denizen["records"],
        "times_litellm": litellm
        and round(denizen["plain"]["per_s"] / litellm["plain"]["per_s"], 1),
    }


def _added(direct: Mapping[str, Any], through: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much each quantile is later than direct."""
    return {
        name: {
            key: round(through[name][key] - direct[name][key], 2)
            for key in ("p50_ms", "p99_ms")
            if through[name][key] is not None
        }
        for name in direct
        if name in through and "p50_ms" in direct[name]
    }


def _records(database: Path) -> int:
    """Count the calls that are in the file when the service has ended."""
    connection = sqlite3.connect(database)
    try:
        return int(connection.execute("SELECT COUNT(*) FROM calls").fetchone()[0])
    finally:
        connection.close()


@contextmanager
def _engine(folder: Path, interval_ms: float) -> Iterator[str]:
    weights = {"model.layers.0.mlp.up_proj.weight": np.zeros((8, 4), dtype=np.float32)}
    (folder / "model").mkdir()
    save_file(weights, folder / "model/model.safetensors")
    command = [sys.executable, "-m", "bench.fake_upstream", "--model-dir", str(folder / "model")]
    command += ["--delay-ms", str(DELAY_MS), "--interval-ms", str(interval_ms)]
    with _process(command, LOAD_CORE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"


@contextmanager
def _denizen(folder: Path, engine_url: str) -> Iterator[str]:
    home = folder / "home"
    home.mkdir()
    command = [sys.executable, "-m", "console.cli", "serve", "--port", "0"]
    command += ["--engine-url", engine_url]
    with _process(command, GATEWAY_CORE, env={"DENIZEN_HOME": str(home)}) as process:
        note = home / "service.json"
        _wait(lambda: note.exists() and bool(note.read_text(encoding="utf-8")))
        url = str(json.loads(note.read_text(encoding="utf-8"))["url"])
        _wait(lambda: _answers(f"{url}/ready"))
        _wait(lambda: _is_at_rest(process))
        yield url


@contextmanager
def _litellm(python: Path, folder: Path, engine_url: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = litellm_proxy.command(python, folder, engine_url, port)
    with _process(command, GATEWAY_CORE, env=litellm_proxy.QUIET, cwd=folder) as process:
        url = f"http://127.0.0.1:{port}"
        _wait(lambda: _answers(f"{url}/health/liveliness"))
        _wait(lambda: _is_at_rest(process))
        yield url


@contextmanager
def _process(
    command: list[str],
    core: int,
    *,
    env: Mapping[str, str] | None = None,
    stdout: int | None = None,
    cwd: Path | None = None,
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program on one core until the block ends."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdout=sys.stderr if stdout is None else stdout,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _is_at_rest(process: "subprocess.Popen[bytes]") -> bool:
    """Say whether what it and its children do at their start is done."""
    parent = psutil.Process(process.pid)
    everyone = [parent, *parent.children(recursive=True)]
    before = [one.cpu_times() for one in everyone]
    time.sleep(1.0)
    after = [one.cpu_times() for one in everyone]
    busy_s = sum(b.user + b.system - a.user - a.system for a, b in zip(before, after, strict=True))
    return bool(busy_s < REST_CPU_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _wait(condition: Any) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("a server did not start in time")
        time.sleep(0.1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--no-litellm", action="store_true", help="leave the comparison out")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement")
    parser.add_argument("--interval-ms", type=float, default=50.0, help="between a stream's tokens")
    return parser.parse_args()


if __name__ == "__main__":
    main()
