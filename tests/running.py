"""Services for tests: in a thread of this process, or as a process that can be killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np
import uvloop

import settings as configuration
from agent.http_server import listen
from agent.policy import PolicyClient
from assembly.parts import Parts
from memory.embed import Embedding
from service import Service

REPOSITORY = Path(__file__).resolve().parents[1]


class HashEmbedder:
    """Texts that begin with the same word get nearly the same vector."""

    id = "hash"
    dimension = 16

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> Embedding:
        words = text.split()
        if not words:
            return Embedding(vector_D=None, reason="empty text")
        rng = np.random.default_rng(sum(words[0].encode()))
        vector_D = rng.normal(size=self.dimension).astype(np.float32)
        return Embedding(vector_D=vector_D / np.linalg.norm(vector_D))


class ServiceThread:
    """A service with a hash embedder, on a real socket."""

    def __init__(
        self,
        home: Path,
        engine_url: str | None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        ready_timeout_s: float = 30.0,
    ) -> None:
        urls = (engine_url,) if engine_url else ()  # none: the service starts a real vLLM
        overrides: dict[str, dict[str, Any]] = {"engine": {"urls": urls}}
        for section, values in (sections or {}).items():
            overrides[section] = {**overrides.get(section, {}), **values}
        self.service = Service(configuration.load(home, overrides), home, HashEmbedder())
        self._thread = threading.Thread(target=self._run)
        self._ready_timeout_s = ready_timeout_s
        self._failure: BaseException | None = None
        self.http = httpx.Client(timeout=30)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: self._failure is not None or bool(self.service.url))
        self.http.base_url = self.service.url
        wait_until(self._is_ready, self._ready_timeout_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.http.close()
        self.service.request_stop()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the service did not stop"

    @property
    def parts(self) -> Parts:
        """What the service is made of."""
        return self.service.parts

    @property
    def model_dir(self) -> Path:
        """The packaged model of a service that started its own engine."""
        return self.service.home / "models" / "smollm2-135m-instruct"

    def engine_client(self) -> PolicyClient:
        """Return a client of the engine that the service started."""
        engine = self.service.engines.child
        assert engine is not None
        return PolicyClient(engine.url, engine.api_key)

    def _is_ready(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return is_ready(self.http)

    def _run(self) -> None:
        with listen("127.0.0.1", 0) as listener:
            try:
                uvloop.run(self.service.run(listener))
            except BaseException as error:
                self._failure = error
                raise


class ServiceProcess:
    """``denizen serve`` as a process of its own, over the same home as often as it is started."""

    def __init__(self, home: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.home = home
        self._arguments = arguments
        self._env = {**os.environ, "DENIZEN_HOME": str(home), **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(timeout=60)

    def start(self, prelude: str = "") -> None:
        """Start it; ``prelude`` is Python that runs before, for faults that must be forced."""
        program = f"{prelude}\nfrom console.cli import main\nmain()"
        arguments = ["serve", "--port", "0", *self._arguments]
        (self.home / "service.json").unlink(missing_ok=True)
        with (self.home / "stdout.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments],
                env=self._env,
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until ``/ready`` says yes."""

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            note = self.home / "service.json"
            if not note.exists() or not (text := note.read_text("utf-8")):
                return False
            self.http.base_url = json.loads(text)["url"]
            return is_ready(self.http)

        wait_until(ready, timeout_s)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM; return the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def output(self) -> str:
        """Return the end of what it printed."""
        return (self.home / "stdout.log").read_text("utf-8", errors="replace")[-3_000:]


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


def ask(content: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat completion."""
    return {"model": "denizen", "messages": [{"role": "user", "content": content}], **fields}
