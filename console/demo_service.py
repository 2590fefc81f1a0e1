"""The service that the demo talks to: its own, over a throw-away home."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from console.client import ServiceClient, denizen_home
from console.errors import NoServiceError, ServiceError

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 15.0
PACKAGED_MODEL = "models/smollm2-135m-instruct"


@contextmanager
def demo_service(settings: Mapping[str, str]) -> Iterator[ServiceClient]:
    """Yield a client of a service of its own; it is stopped afterwards, and its home removed.

    Args:
        settings: its environment; of the caller's settings only the engine's are kept.

    Raises:
        NoServiceError: it did not become ready.
    """
    with (
        tempfile.TemporaryDirectory(prefix="denizen-demo-") as folder,
        _running(Path(folder), settings) as process,
        ServiceClient(_wait_until_ready(process, Path(folder))) as client,
    ):
        yield client


@contextmanager
def _running(home: Path, settings: Mapping[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the service on a leash, which ends it however this process ends."""
    read_fd, write_fd = os.pipe()
    leash = ["-m", "agent.leash", "--fd", str(read_fd), "--grace", str(STOP_TIMEOUT_S), "--"]
    serve = ["-m", "console.cli", "serve", "--home", str(home), "--port", "0"]
    with (home / "demo.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *leash, sys.executable, *serve],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(settings),
            pass_fds=(read_fd,),
            start_new_session=True,
        )
    os.close(read_fd)
    try:
        yield process
    finally:
        os.close(write_fd)
        process.wait()


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DENIZEN_") or name.startswith("DENIZEN_ENGINE__")
    }
    prepared = denizen_home() / PACKAGED_MODEL
    if prepared.is_dir():  # the conversion of an earlier start is used again
        kept.setdefault("DENIZEN_ENGINE__MODEL", str(prepared))
    return kept | dict(settings)


def _wait_until_ready(process: "subprocess.Popen[bytes]", home: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            words = (home / "demo.log").read_text("utf-8", errors="replace")[-2_000:]
            raise NoServiceError(f"the demo's service ended while starting:\n{words}")
        if (url := _url_of(home)) is not None:
            with ServiceClient(url) as client:
                if _is_ready(client):
                    return url
        time.sleep(0.5)
    raise NoServiceError(f"the demo's service was not ready within {START_TIMEOUT_S:.0f} s")


def _url_of(home: Path) -> str | None:
    note = home / "service.json"
    return str(json.loads(note.read_bytes())["url"]) if note.exists() else None


def _is_ready(client: ServiceClient) -> bool:
    try:
        return bool(client.get("status")["ready"])
    except (NoServiceError, ServiceError):
        return False
