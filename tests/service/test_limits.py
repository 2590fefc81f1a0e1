"""P-27: a request that is too large in any way costs next to nothing, and others go on."""

import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceProcess, ask

CHAT = "/v1/chat/completions"
TRIES = 3  # of which one must be quick: the machine does other work as well
MIB = 2**20


def nested(depth: int) -> bytes:
    return b'{"model": "denizen", "messages": ' + b"[" * depth + b"]" * depth + b"}"


def fifty_megabytes() -> Iterator[bytes]:
    yield b'{"model": "denizen", "messages": [{"role": "user", "content": "'
    for _ in range(50):
        yield b"x" * 1_000_000


TOO_MUCH: dict[str, tuple[Any, int]] = {
    "choices": (ask("x", n=1_000_000), 400),
    "tokens": (ask("x", max_tokens=10**9), 400),
    "tools": (ask("x", tools=[{}] * 100_000), 400),
    "messages": (ask("") | {"messages": [{"role": "user", "content": "x"}] * 100_000}, 400),
    "stops": (ask("x", stop=["x"] * 100_000), 400),
    "logprobs": (ask("x", logprobs=True, top_logprobs=10**6), 400),
    "depth": (nested(10_000), 400),
    "body": (fifty_megabytes, 413),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[ServiceProcess]:
    """Start a process of its own, so that its memory can be told from the test's."""
    with FakeEngine(root=str(tiny_model)) as engine:
        home = tmp_path_factory.mktemp("home")
        service = ServiceProcess(home, "--engine-url", engine.url)
        service.start()
        service.wait_ready()
        yield service
        service.http.close()
        assert service.stop() == 0


def resident_bytes(service: ServiceProcess, line: str) -> int:
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status").read_text("utf-8")
    [found] = [one for one in status.splitlines() if one.startswith(line)]
    return int(found.split()[1]) * 1024


def refused_after(service: ServiceProcess, body: Any, status: int) -> float:
    """Send what is too much; return the seconds until the refusal."""
    content = {"content": body()} if callable(body) else {}
    if not content:
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
    began_at = time.monotonic()
    response = service.http.post(CHAT, **content)
    took_s = time.monotonic() - began_at
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    return took_s


def test_one_refusal_of_each_leaves_memory_as_it_was(service):
    """Stands first: the process has refused nothing yet."""
    before = resident_bytes(service, "VmRSS")
    for body, status in TOO_MUCH.values():
        refused_after(service, body, status)
    assert resident_bytes(service, "VmRSS") - before < 50 * MIB


@pytest.mark.parametrize("what", TOO_MUCH)
def test_too_much_of_anything_is_refused_within_a_second(service, what):
    body, status = TOO_MUCH[what]
    assert min(refused_after(service, body, status) for _ in range(TRIES)) < 1.0


def test_others_are_answered_without_delay_meanwhile(service):
    refused: list[float] = []

    def send_too_much() -> None:
        for body, status in TOO_MUCH.values():
            refused.append(refused_after(service, body, status))

    sender = threading.Thread(target=send_too_much)
    sender.start()
    waits_s = []
    with httpx.Client(base_url=service.http.base_url) as http:
        while sender.is_alive():
            began_at = time.monotonic()
            assert http.post(CHAT, json=ask("hi", max_tokens=1)).status_code == 200
            waits_s.append(time.monotonic() - began_at)
    sender.join()
    assert len(refused) == len(TOO_MUCH)
    assert statistics.median(waits_s) < 0.2
