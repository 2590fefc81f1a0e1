"""An engine that costs nothing: vLLM's answers at a fixed pace, written from prepared bytes.

``python -m bench.fake_upstream --model-dir DIR`` prints its port and serves until it is ended.
Every answer begins after ``--delay-ms``; a stream goes on with one token every ``--interval-ms``.
``max_tokens`` says how many tokens there are. Token ids and log-probabilities are sent to those who
ask for them. It checks nothing: the faithful stand-in is ``tests/fake_engine``.
"""

import argparse
import asyncio
import gc
import itertools
import json
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import orjson

WORD = " word"
PROMPT_IDS = list(range(100, 132))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
STREAM_END = b"data: [DONE]\n\n"
ID = b"chatcmpl-%016x" % 0  # stands in prepared bytes where each answer has its own


@dataclass(frozen=True, slots=True)
class Pace:
    """What the engine is told on the command line."""

    model_dir: str
    delay_s: float
    interval_s: float


@dataclass(slots=True)
class Connection(asyncio.Protocol):
    """One kept connection; requests come one after another."""

    pace: Pace
    ids: "itertools.count[int]"
    transport: asyncio.Transport | None = None
    pending: bytearray = field(default_factory=bytearray)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer when a request is complete."""
        self.pending += data
        end = self.pending.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self.pending[:end]).lower()
        _, found, rest = head.partition(b"content-length:")
        total = end + 4 + (int(rest.partition(b"\r\n")[0]) if found else 0)
        if len(self.pending) < total:
            return
        path, body = head.split(b" ", 2)[1], bytes(self.pending[end + 4 : total])
        del self.pending[:total]
        self._answer(path, body)

    def _answer(self, path: bytes, raw: bytes) -> None:
        if path != b"/v1/chat/completions":
            self._write(HEAD % _counted(_about(path, self.pace.model_dir)))
            return
        body = orjson.loads(raw)
        num_tokens = body.get("max_tokens") or 16
        name = b"chatcmpl-%016x" % next(self.ids)
        asked = bool(body.get("return_token_ids"))
        loop = asyncio.get_running_loop()
        if body.get("stream"):
            chunks = _chunks(num_tokens, asked)
            loop.call_later(self.pace.delay_s, self._stream, chunks, 0, name)
        else:
            whole = _whole(num_tokens, asked).replace(ID, name)
            loop.call_later(self.pace.delay_s, self._write, HEAD % _counted(whole))

    def _stream(self, chunks: list[bytes], index: int, name: bytes) -> None:
        """Send one chunk and order the next."""
        event = chunks[index].replace(ID, name)
        if index + 1 < len(chunks):
            loop = asyncio.get_running_loop()
            loop.call_later(self.pace.interval_s, self._stream, chunks, index + 1, name)
        self._write((STREAM_HEAD if index == 0 else b"") + event)

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


def _counted(body: bytes) -> tuple[int, bytes]:
    return len(body), body


def _about(path: bytes, model_dir: str) -> bytes:
    """Answer what a service asks of an engine beside chat."""
    if path == b"/v1/models":
        return orjson.dumps({"data": [{"id": "base", "root": model_dir, "parent": None}]})
    return b"vllm:generation_tokens_total 1.0\n" if path == b"/metrics" else b"{}"


@cache
def _whole(num_tokens: int, asked: bool) -> bytes:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": WORD * num_tokens},
        "finish_reason": "stop",
    }
    answer = _heading("chat.completion") | {"choices": [choice], "usage": _usage(num_tokens)}
    if asked:
        choice |= _measured(num_tokens)
        answer["prompt_token_ids"] = PROMPT_IDS
    return orjson.dumps(answer)


@cache
def _chunks(num_tokens: int, asked: bool) -> list[bytes]:
    """Return a stream's parts, one a token; the first has the role, the last the end."""
    events = []
    for number in range(num_tokens):
        is_last = number == num_tokens - 1
        choice: dict[str, Any] = {
            "index": 0,
            "delta": {"content": WORD} | ({} if number else {"role": "assistant"}),
            "finish_reason": "stop" if is_last else None,
        }
        chunk = _heading("chat.completion.chunk") | {"choices": [choice]}
        if asked:
            choice |= _measured(1)
            chunk |= {} if number else {"prompt_token_ids": PROMPT_IDS}
        data = b"data: " + orjson.dumps(chunk) + b"\n\n" + (STREAM_END if is_last else b"")
        framed = b"%x\r\n%b\r\n" % _counted(data)
        events.append(framed + (b"0\r\n\r\n" if is_last else b""))
    return events


def _heading(kind: str) -> dict[str, Any]:
    return {"id": ID.decode(), "object": kind, "created": 1_764_000_000, "model": "base"}


def _measured(num_tokens: int) -> dict[str, Any]:
    entry = {"token": WORD, "logprob": -0.5, "bytes": list(WORD.encode()), "top_logprobs": []}
    return {"token_ids": [7] * num_tokens, "logprobs": {"content": [entry] * num_tokens}}


def _usage(num_tokens: int) -> dict[str, int]:
    prompt = len(PROMPT_IDS)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": num_tokens,
        "total_tokens": prompt + num_tokens,
    }


async def _serve(pace: Pace) -> None:
    ids = itertools.count(1)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(pace, ids), "127.0.0.1", 0, backlog=2048
    )
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(prog="python -m bench.fake_upstream", description=__doc__)
    parser.add_argument("--model-dir", required=True, help="what it names as its base model")
    parser.add_argument("--delay-ms", type=float, default=5.0)
    parser.add_argument("--interval-ms", type=float, default=50.0)
    options = parser.parse_args()
    gc.disable()  # nothing here makes cycles; a pause would look like the gateway's
    pace = Pace(options.model_dir, options.delay_ms / 1000, options.interval_ms / 1000)
    asyncio.run(_serve(pace))


if __name__ == "__main__":
    main()
