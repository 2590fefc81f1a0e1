"""Measures changes of version on the real engine behind the whole service, in one run.

``python -m bench.swaps`` starts a service with the packaged model in a temporary home, brings
adapters in and prints one JSON object of seconds: from the start of a promotion to the first token
of the new version (verify, load and probe included); of a rollback, after which every request is
answered by the older version; and from SIGKILL of vLLM until the service is ready with the same
version. It takes about two minutes on two cores; run nothing beside it.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import httpx
import psutil

from bench.adapters import write_adapter

QUESTION = [{"role": "user", "content": "What is 7 times 8?"}]
READY_TIMEOUT_S = 300.0


def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder,
        _service(Path(folder)) as (
            http,
            process,
        ),
    ):
        versions = _bring_in(http, Path(folder), options.rounds)
        publishing, rollbacks = [_publish(http, versions[0])], []
        for before, version in pairwise(versions):
            publishing.append(_publish(http, version))
            rollbacks.append(_roll_back(http, before))
            _publish(http, version)
        restart_s = _kill_engine(http, process)
    report = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
        "publish_to_first_token_s": _spread(publishing),
        "rollback_request_s": _spread([one for one, _ in rollbacks]),
        "rollback_to_first_token_s": _spread([one for _, one in rollbacks]),
        "ready_after_sigkill_s": round(restart_s, 1),
    }
    print(json.dumps(report, indent=2))


@contextmanager
def _service(folder: Path) -> Iterator[tuple[httpx.Client, "subprocess.Popen[bytes]"]]:
    """Run ``denizen serve`` on a home of its own until the block ends."""
    environment = os.environ | {"DENIZEN_HOME": str(folder / "home")}
    (folder / "home").mkdir()
    command = [sys.executable, "-m", "console.cli", "serve", "--port", "0"]
    process = subprocess.Popen(command, env=environment, stdout=sys.stderr)
    try:
        note = folder / "home/service.json"
        _wait(lambda: note.exists())
        url = json.loads(note.read_text(encoding="utf-8"))["url"]
        with httpx.Client(base_url=url, timeout=60) as http:
            _wait(lambda: _is_ready(http))
            yield http, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _bring_in(http: httpx.Client, folder: Path, num_versions: int) -> list[str]:
    """Import adapters on all linear layers; nothing is loaded yet."""
    model = folder / "home/models/smollm2-135m-instruct"
    versions = []
    for seed in range(num_versions):
        made = write_adapter(folder / f"adapter-{seed}", model, seed=seed)
        files = {path.name: (path.name, path.read_bytes()) for path in made.iterdir()}
        answer = http.post("/v1/adapters", files=files)
        answer.raise_for_status()
        versions.append(answer.json()["id"])
    return versions


def _publish(http: httpx.Client, version: str) -> float:
    """Promote, and return the seconds until the new version's first token."""
    began = time.perf_counter()
    body = {"force": True, "reason": "a measurement"}
    http.post(f"/v1/adapters/{version}/promote", json=body).raise_for_status()
    _first_token(http, version)
    return time.perf_counter() - began


def _roll_back(http: httpx.Client, version: str) -> tuple[float, float]:
    """Go back to ``version``; return the seconds of the request, and until the next first token."""
    began = time.perf_counter()
    http.post("/v1/adapters/rollback", json={"reason": "a measurement"}).raise_for_status()
    took_s = time.perf_counter() - began
    _first_token(http, version)
    return took_s, time.perf_counter() - began


def _first_token(http: httpx.Client, version: str) -> None:
    body = {"model": "denizen", "messages": QUESTION, "max_tokens": 2, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        if answer.headers["x-denizen-adapter"] != version:
            raise RuntimeError(f"{version} is live, {answer.headers['x-denizen-adapter']} answered")
        lines = answer.iter_lines()
        while '"content"' not in next(lines):
            pass


def _kill_engine(http: httpx.Client, process: "subprocess.Popen[bytes]") -> float:
    """Kill all of vLLM, and return the seconds until the service is ready with the same version."""
    live = http.get("/v1/status").json()["live"]
    for one in psutil.Process(process.pid).children(recursive=True):
        if "agent.leash" not in one.cmdline():
            one.kill()
    began = time.perf_counter()
    _wait(lambda: not _is_ready(http))
    _wait(lambda: _is_ready(http))
    took_s = time.perf_counter() - began
    _first_token(http, live)
    return took_s


def _is_ready(http: httpx.Client) -> bool:
    return http.get("/ready").status_code == 200


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the service did not get there in time")
        time.sleep(0.05)


def _spread(seconds: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(seconds), 3),
        "largest": round(max(seconds), 3),
        "num": len(seconds),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.swaps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="versions to bring in and publish")
    return parser.parse_args()


if __name__ == "__main__":
    main()
