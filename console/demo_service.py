"""The service that the demo talks to: its own over a throw-away home, or one that runs."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from console.client import ServiceClient, denizen_home, find_service
from console.errors import NoServiceError, ServiceError

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0
PACKAGED_MODEL = "models/smollm2-135m-instruct"


@contextmanager
def demo_service(settings: Mapping[str, str]) -> Iterator[ServiceClient]:
    """Yield a client of a ready service; one that was started is stopped, its home removed.

    Args:
        settings: environment of the started service; a running one keeps its own settings.

    Raises:
        NoServiceError: it did not become ready.
    """
    key = os.environ.get("DENIZEN_API_KEY")
    if url := os.environ.get("DENIZEN_URL"):
        with ServiceClient(url, api_key=key) as client:
            yield client
        return
    with tempfile.TemporaryDirectory(prefix="denizen-demo-") as folder:
        home = Path(folder)
        process = _start(home, settings)
        try:
            with ServiceClient(_wait_until_ready(process, home)) as client:
                yield client
        finally:
            _stop(process)


def _start(home: Path, settings: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **settings}
    prepared = denizen_home() / PACKAGED_MODEL
    if prepared.is_dir():  # the conversion of an earlier start is used again
        environment.setdefault("DENIZEN_ENGINE__MODEL", str(prepared))
    command = [sys.executable, "-m", "console.cli", "serve", "--home", str(home), "--port", "0"]
    with (home / "demo.log").open("wb") as log:
        return subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )


def _wait_until_ready(process: "subprocess.Popen[bytes]", home: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            words = (home / "demo.log").read_text("utf-8", errors="replace")[-2_000:]
            raise NoServiceError(f"the demo's service ended while starting:\n{words}")
        if (home / "service.json").exists():
            url = find_service(home)
            with ServiceClient(url) as client:
                if _is_ready(client):
                    return url
        time.sleep(0.5)
    raise NoServiceError(f"the demo's service was not ready within {START_TIMEOUT_S:.0f} s")


def _is_ready(client: ServiceClient) -> bool:
    try:
        return bool(client.get("status")["ready"])
    except (NoServiceError, ServiceError):
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
