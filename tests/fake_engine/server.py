"""The server: listens, records what arrives, dies and comes back when told to."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from tests.fake_engine import tokens
from tests.fake_engine.adapters import AdapterTable
from tests.fake_engine.api import Api
from tests.fake_engine.chat import Chat
from tests.fake_engine.completions import Completions
from tests.fake_engine.core import Core
from tests.fake_engine.faults import Switches
from tests.fake_engine.refusals import error

WORDY = "Well, let me think about that. You said: {text} There is much to say about it."

Answer = Callable[[str, Sequence[Mapping[str, Any]]], str]


@dataclass(kw_only=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]
    disconnected: bool = False  # the client hung up before the answer was complete


class FakeEngine:
    """The server, in a thread of its own; see the package's text.

    Args:
        max_loras: slots for adapter weights; None: as many as it takes.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        api_key: str | None = None,
        vocab_size: int = 49152,
        max_model_len: int = 2048,
        root: str = "fake/base",
        base_name: str = "base",
        max_loras: int | None = None,
        answer: Answer | None = None,
    ) -> None:
        self.port = port
        self.api_key = api_key
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.root = root
        self.base_name = base_name
        self.answer = answer or default_answer
        self.requests: list[Request] = []
        self.adapters = AdapterTable(max_loras)
        self.switches = Switches()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, with no adapter loaded; returns when connections are accepted."""
        self.adapters.lose_all()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        if not ready.wait(10.0):
            raise RuntimeError("the fake engine did not start")

    def stop(self) -> None:
        """Break every connection and stop listening, as a SIGKILL does."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10.0)
        self._thread = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def control(self, **switches: Any) -> None:
        """Set switches by name (see ``Switches``); the others stay."""
        self.switches.set(**switches)

    def reset(self) -> None:
        """Turn every failure off."""
        self.switches.reset()

    def paths(self, prefix: str = "/") -> list[str]:
        """Return the paths of the recorded requests that begin with ``prefix``, in order."""
        return [request.path for request in self.requests if request.path.startswith(prefix)]

    def weights_of(self, model: str) -> str:
        """Return whose weights answer, which are not always those of the model asked for."""
        return self.base_name if self.switches.no_effect else model

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of ``text``: one per word with the space before it."""
        return tokens.tokenize(text, self.vocab_size)

    def prompt_ids(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()
    ) -> list[int]:
        """Return the token ids of a conversation that the assistant is to continue."""
        return tokens.prompt_ids(messages, tools, self.vocab_size)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        runner = web.AppRunner(self._app(), handler_cancellation=True, shutdown_timeout=0.05)
        await runner.setup()
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        try:
            site = web.SockSite(runner, listener)
            await site.start()
            ready.set()
            await self._stopping.wait()
            self._loop.remove_reader(listener)
            await asyncio.sleep(0.01)  # what was just accepted becomes a connection, and breaks too
            await site.stop()
            assert runner.server is not None
            for connection in runner.server.connections:
                if connection.transport is not None:
                    connection.transport.abort()
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._record], client_max_size=64 * 2**20)
        core = Core(self.switches)
        for part in (Api(self, core), Chat(self, core), Completions(self, core)):
            app.add_routes(part.routes())
        app.add_routes(
            [
                web.post("/control", self._control),
                web.get("/control/requests", self._control_requests),
            ]
        )
        return app

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/control"):
            response: web.StreamResponse = await handler(request)
            return response
        raw = await request.read()
        body, is_json = None, True
        if raw:
            try:
                body = json.loads(raw)
            except ValueError:
                is_json = False
        record = Request(
            method=request.method, path=request.path, body=body, headers=dict(request.headers)
        )
        self.requests.append(record)
        is_guarded = self.api_key is not None and request.path.startswith("/v1")
        if is_guarded and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if not is_json:
            return error(400, "1 validation error: JSON decode error", "Bad Request", "body")
        try:
            return await handler(request)  # type: ignore[no-any-return]
        except (asyncio.CancelledError, ConnectionError):
            record.disconnected = True
            raise

    async def _control(self, request: web.Request) -> web.Response:
        try:
            self.control(**await request.json())
        except TypeError as mistake:
            return web.Response(status=400, text=str(mistake))
        return web.json_response(asdict(self.switches))

    async def _control_requests(self, _: web.Request) -> web.Response:
        return web.json_response([asdict(request) for request in self.requests])


def default_answer(model: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Answer in many words for the base model, in few for an adapter."""
    said = (tokens.text_of(one) for one in reversed(messages) if one.get("role") == "user")
    text = next(said, "")
    return WORDY.format(text=text) if model == "base" else f"{model}: {text}"
