"""A fake vLLM: a real HTTP server whose answers are known and whose failures are ordered.

It answers with the JSON shapes of vLLM 0.32 (recorded from the real engine), keeps a table of
loaded adapters, and records every request. Answers are functions of (model name, messages,
``seed``, choice index) alone: the base model is wordy, an adapter answers ``denizen-000007: TEXT``,
so tests can tell versions apart. Token ids are hashes of the words, between 3 and ``vocab_size``; a
prompt that extends an earlier prompt and its answer extends its token ids exactly.
Log-probabilities are hashes of model, position and token id.

In a test::

    @pytest.fixture
    def engine() -> Iterator[FakeEngine]:
        with FakeEngine() as engine:
            yield engine

    def test_something(engine):
        engine.control(cut_after_chunks=3)
        ... talk to engine.url ...
        assert engine.requests[-1].body["model"] == "denizen-000007"

``FakeEngine(answer=lambda model, messages: "12")`` replaces the answers. ``stop()`` and ``start()``
again is a crash and a restart: same port, no adapters. As a program, ``python -m tests.fake_engine
--port 0`` prints ``{"port": 51234}`` and takes its orders through ``POST /control`` (a JSON object
of ``Switches``) and shows ``GET /control/requests``.
"""

import argparse
import asyncio
import json
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

BOS, EOS = 1, 2
BODY: Any = web.RequestKey("body", object)
WORDY = "Well, let me think about that. You said: {text} There is much to say about it."

Answer = Callable[[str, Sequence[Mapping[str, Any]]], str]


@dataclass(kw_only=True)
class Switches:
    """What goes wrong, until it is ordered otherwise."""

    http_error: int | None = None  # status of every chat and completion
    delay_s: float = 0.0  # before an answer begins
    chunk_delay_s: float = 0.0  # before each streamed chunk
    chunk_tokens: int = 1  # tokens in one streamed chunk
    cut_after_chunks: int | None = None  # drop the connection after so many chunks
    stall_after_chunks: int | None = None  # send nothing more, and keep the connection
    error_after_chunks: int | None = None  # an error event in the stream, then [DONE]
    raw_chunks: list[str] | None = None  # stream exactly these pieces (latin-1), apart in time
    refuse_load: dict[str, int] = field(default_factory=dict)  # adapter name or "*" -> status
    unload_hangs: bool = False
    no_effect: bool = False  # adapters have the base model's prompt log-probabilities
    health_status: int = 200


@dataclass(kw_only=True)
class Request:
    """One request as it arrived."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]
    disconnected: bool = False  # the client hung up before the answer was complete


class FakeEngine:
    """The server, in a thread of its own; see the module's text."""

    def __init__(
        self,
        *,
        port: int = 0,
        api_key: str | None = None,
        vocab_size: int = 49152,
        max_model_len: int = 2048,
        root: str = "fake/base",
        base_name: str = "base",
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
        self.adapters: dict[str, str] = {}  # name -> path
        self.switches = Switches()
        self._num_answers = 0
        self._num_tokens = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, with no adapter loaded; returns when connections are accepted."""
        self.adapters.clear()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        if not ready.wait(10.0):
            raise RuntimeError("the fake engine did not start")

    def stop(self) -> None:
        """Drop every connection and stop listening; ``start`` listens on the same port again."""
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
        known = {one.name for one in fields(Switches)}
        for name, value in switches.items():
            if name not in known:
                raise TypeError(f"no switch is called {name!r}; there are {sorted(known)}")
            setattr(self.switches, name, value)

    def reset(self) -> None:
        """Turn every failure off."""
        self.switches = Switches()

    def paths(self, prefix: str = "/") -> list[str]:
        """Return the paths of the recorded requests that begin with ``prefix``, in order."""
        return [request.path for request in self.requests if request.path.startswith(prefix)]

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        runner = web.AppRunner(self._app(), handler_cancellation=True, shutdown_timeout=0.05)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
            await site.start()
            self.port = runner.addresses[0][1]
            ready.set()
            await self._stopping.wait()
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._record], client_max_size=64 * 2**20)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/load_lora_adapter", self._load),
                web.post("/v1/unload_lora_adapter", self._unload),
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
            return _error(400, "1 validation error: JSON decode error", "Bad Request", "body")
        request[BODY] = body
        try:
            return await handler(request)  # type: ignore[no-any-return]
        except (asyncio.CancelledError, ConnectionError):
            record.disconnected = True
            raise

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self.switches.health_status)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=f"vllm:generation_tokens_total{{}} {self._num_tokens}\n")

    async def _models(self, _: web.Request) -> web.Response:
        entries = [self._model_entry(self.base_name, self.root, None)]
        entries += [
            self._model_entry(name, path, self.base_name) for name, path in self.adapters.items()
        ]
        return web.json_response({"object": "list", "data": entries})

    def _model_entry(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": None if parent else self.max_model_len,
            "permission": [],
        }

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = request[BODY]
        refusal = self._refusal(body)
        if refusal is not None:
            return refusal
        await asyncio.sleep(self.switches.delay_s)
        self._num_answers += 1
        identity = f"chatcmpl-{self._num_answers:016x}"
        choices = [_Choice(self, body, index) for index in range(body.get("n") or 1)]
        self._num_tokens += sum(len(choice.token_ids) for choice in choices)
        if body.get("stream"):
            return await self._stream(request, body, identity, choices)
        return web.json_response(self._answer_body(body, identity, choices))

    def _refusal(self, body: Mapping[str, Any]) -> web.Response | None:
        model = body.get("model", self.base_name)
        limit = body.get("max_tokens")
        if self.switches.http_error is not None:
            return _error(
                self.switches.http_error, "ordered by the test", "InternalServerError", None
            )
        if model != self.base_name and model not in self.adapters:
            aliases = ", ".join([self.base_name, *self.adapters])
            message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
            return _error(404, message, "NotFoundError", "model")
        if limit is not None and limit < 1:
            message = f"max_tokens must be at least 1, got {limit}."
            return _error(400, message, "BadRequestError", "max_tokens")
        if limit is not None and limit > self.max_model_len:
            message = (
                f"max_tokens={limit} cannot be greater than max_model_len={self.max_model_len}."
            )
            return _error(400, message, "BadRequestError", "max_tokens")
        return None

    def _answer_body(
        self, body: Mapping[str, Any], identity: str, choices: Sequence["_Choice"]
    ) -> dict[str, Any]:
        with_ids = bool(body.get("return_token_ids"))
        return {
            "id": identity,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model", self.base_name),
            "choices": [choice.complete(with_ids=with_ids) for choice in choices],
            "service_tier": None,
            "system_fingerprint": "vllm-0.32.0-fake",
            "usage": {
                **_usage(choices),
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
            "prompt_logprobs": None,
            "prompt_token_ids": choices[0].prompt_ids if with_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    async def _stream(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        identity: str,
        choices: Sequence["_Choice"],
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if self.switches.raw_chunks is not None:
            for piece in self.switches.raw_chunks:
                await response.write(piece.encode("latin-1"))
                await asyncio.sleep(0.002)
            return response
        common = {
            "id": identity,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": body.get("model", self.base_name),
        }
        for num_sent, chunk in enumerate(self._chunks(body, choices)):
            await asyncio.sleep(self.switches.chunk_delay_s)
            if num_sent == self.switches.cut_after_chunks:
                assert request.transport is not None
                request.transport.abort()
                raise ConnectionResetError("cut by order of the test")
            if num_sent == self.switches.stall_after_chunks:
                await asyncio.Event().wait()
            if num_sent == self.switches.error_after_chunks:
                error = {"message": "ordered by the test", "type": "InternalServerError"}
                await response.write(_event({"error": {**error, "param": None, "code": 500}}))
                break
            await response.write(_event({**common, **chunk}))
        await response.write(b"data: [DONE]\n\n")
        return response

    def _chunks(
        self, body: Mapping[str, Any], choices: Sequence["_Choice"]
    ) -> Iterator[dict[str, Any]]:
        with_ids = bool(body.get("return_token_ids"))
        for choice in choices:
            yield choice.first_chunk(with_ids=with_ids)
        for choice in choices:
            yield from choice.chunks(with_ids=with_ids, size=self.switches.chunk_tokens)
        if (body.get("stream_options") or {}).get("include_usage"):
            yield {
                "choices": [],
                "usage": _usage(choices),
                "system_fingerprint": "vllm-0.32.0-fake",
            }

    async def _completions(self, request: web.Request) -> web.Response:
        body = request[BODY]
        refusal = self._refusal(body)
        if refusal is not None:
            return refusal
        prompt, model = body["prompt"], body["model"]
        if isinstance(prompt, str):
            prompt = self.tokenize(prompt)
        scored_as = self.base_name if self.switches.no_effect else model
        entries: list[Any] = [None]
        for position, token in enumerate(prompt[1:], start=1):
            value = _logprob(scored_as, position, token)
            entries.append({str(token): {"logprob": value, "rank": 1, "decoded_token": "?"}})
        choice = {
            "index": 0,
            "text": " .",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [3] if body.get("return_token_ids") else None,
            "prompt_logprobs": None if body.get("prompt_logprobs") is None else entries,
            "prompt_token_ids": prompt if body.get("return_token_ids") else None,
        }
        usage = {
            "prompt_tokens": len(prompt),
            "total_tokens": len(prompt) + 1,
            "completion_tokens": 1,
        }
        return web.json_response(
            {
                "id": "cmpl-0",
                "object": "text_completion",
                "created": int(time.time()),
                "model": model,
                "choices": [choice],
                "usage": usage,
            }
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = request[BODY]
        tokens = (
            self.prompt_ids(body["messages"])
            if "messages" in body
            else self.tokenize(body["prompt"])
        )
        return web.json_response(
            {"count": len(tokens), "max_model_len": self.max_model_len, "tokens": tokens}
        )

    async def _load(self, request: web.Request) -> web.Response:
        name, path = request[BODY]["lora_name"], request[BODY]["lora_path"]
        refused = self.switches.refuse_load.get(name, self.switches.refuse_load.get("*"))
        if refused is not None:
            return _error(refused, "ordered by the test", "InternalServerError", None)
        if name in self.adapters:
            message = f"The lora adapter '{name}' has already been loaded."
            return _error(400, message, "InvalidUserInput", None)
        if not Path(path).is_dir():
            message = f"Loading lora {name} failed: No adapter found for {path}"
            return _error(404, message, "NotFoundError", None)
        self.adapters[name] = path
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = request[BODY]["lora_name"]
        if self.switches.unload_hangs:
            await asyncio.Event().wait()
        if self.adapters.pop(name, None) is None:
            message = f"The lora adapter '{name}' cannot be found."
            return _error(404, message, "NotFoundError", None)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _control(self, request: web.Request) -> web.Response:
        try:
            self.control(**await request.json())
        except TypeError as error:
            return web.Response(status=400, text=str(error))
        return web.json_response(asdict(self.switches))

    async def _control_requests(self, _: web.Request) -> web.Response:
        return web.json_response([asdict(request) for request in self.requests])

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of ``text``: one per word with the space before it."""
        return [3 + zlib.crc32(piece.encode()) % (self.vocab_size - 3) for piece in _pieces(text)]

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the token ids of a conversation that the assistant is to continue."""
        ids: list[int] = []
        for message in messages:
            ids += [BOS, *self.tokenize(f"{message.get('role')}\n")]
            ids += [*self.tokenize(_text(message)), EOS]
        return [*ids, BOS, *self.tokenize("assistant\n")]


class _Choice:
    """One choice of one answer: words, ids, log-probabilities, and how vLLM writes them."""

    def __init__(self, engine: FakeEngine, body: Mapping[str, Any], index: int) -> None:
        model, messages = body.get("model", "base"), body.get("messages") or []
        text = engine.answer(model, messages)
        if body.get("seed") is not None:
            text += f" [{body['seed']}]"
        if index:
            text += f" ({index})"
        self.index = index
        self.prompt_ids = engine.prompt_ids(messages)
        self.pieces = [*_pieces(text), ""]  # the last is the end-of-sequence token's text
        self.token_ids = [*engine.tokenize(text), EOS]
        self.finish_reason = "stop"
        limit = body.get("max_tokens") or body.get("max_completion_tokens")
        if limit is not None and limit < len(self.token_ids):
            self.pieces, self.token_ids = self.pieces[:limit], self.token_ids[:limit]
            self.finish_reason = "length"
        self.with_logprobs = bool(body.get("logprobs"))
        self.logprobs = [
            _logprob(model, place, token) for place, token in enumerate(self.token_ids)
        ]

    def complete(self, *, with_ids: bool) -> dict[str, Any]:
        message = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        return {
            "index": self.index,
            "message": {"role": "assistant", "content": "".join(self.pieces), **message},
            "logprobs": self._logprobs(0, len(self.token_ids)),
            "finish_reason": self.finish_reason,
            "stop_reason": None,
            "token_ids": self.token_ids if with_ids else None,
            "routed_experts": None,
        }

    def first_chunk(self, *, with_ids: bool) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": self.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {
            "choices": [choice],
            "prompt_token_ids": self.prompt_ids if with_ids else None,
            "prompt_text": None,
        }

    def chunks(self, *, with_ids: bool, size: int) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self.token_ids), size):
            end = min(start + size, len(self.token_ids))
            choice: dict[str, Any] = {
                "index": self.index,
                "delta": {"content": "".join(self.pieces[start:end])},
                "logprobs": self._logprobs(start, end),
                "finish_reason": None,
            }
            if end == len(self.token_ids):
                choice |= {"finish_reason": self.finish_reason, "stop_reason": None}
            choice["token_ids"] = self.token_ids[start:end] if with_ids else None
            yield {"choices": [choice]}

    def _logprobs(self, start: int, end: int) -> dict[str, Any] | None:
        if not self.with_logprobs:
            return None
        entries = []
        for place in range(start, end):
            token = self.pieces[place] or "<|im_end|>"
            entry = {"token": token, "logprob": self.logprobs[place], "bytes": list(token.encode())}
            entries.append({**entry, "top_logprobs": []})
        return {"content": entries}


def default_answer(model: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Answer in many words for the base model, in few for an adapter."""
    text = next((_text(one) for one in reversed(messages) if one.get("role") == "user"), "")
    return WORDY.format(text=text) if model == "base" else f"{model}: {text}"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content)
    return content or ""


def _pieces(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def _logprob(model: str, place: int, token: int) -> float:
    """Return a number in [-1.001, -0.001] that depends on all three."""
    return -0.001 - (zlib.crc32(f"{model}|{place}|{token}".encode()) % 1000) / 1000


def _usage(choices: Sequence[_Choice]) -> dict[str, int]:
    num_prompt = len(choices[0].prompt_ids)
    num_answer = sum(len(choice.token_ids) for choice in choices)
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_answer,
        "completion_tokens": num_answer,
    }


def _event(content: Mapping[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def _error(status: int, message: str, kind: str, param: str | None) -> web.Response:
    error = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": error}, status=status)


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m tests.fake_engine")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--api-key", default=os.environ.get("VLLM_API_KEY"))
    options = parser.parse_args()
    with FakeEngine(port=options.port, api_key=options.api_key) as engine:
        print(json.dumps({"port": engine.port}), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
