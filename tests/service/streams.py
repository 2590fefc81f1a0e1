"""Fifty streams as an engine sends them, each with the plain answer to the same request.

Most come from the fake engine: eight texts, each sent in six ways. Three come from vLLM 0.32.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.fake_engine import FakeEngine

CHAT = "/v1/chat/completions"
DONE = b"data: [DONE]\n\n"
VLLM = Path(__file__).with_name("vllm_streams.json")
QUESTION = {"role": "user", "content": "1 + 2 and 2 * 3?"}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("add", "mul", "say")
]


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a tool call as the model writes it."""
    told = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{told}</tool_call>"


PLAIN_TEXTS = {
    "words": "Twelve, I think.",
    "utf-8": "é 日本語 🙂 👩‍👩‍👧 done",  # 2, 3 and 4 bytes, and several characters that show as one
    "separators": 'a\n\ndata: [DONE]\r\n\r\n data: {"error": 1} \u2028 b',
    "nothing": "",
}
TOOL_TEXTS = {
    "one call": call("add", {"x": 1}),
    "words and calls": "Wait. " + call("add", {"unit": "é🙂"}) + call("mul", {"x": [2, 3]}),
    "three calls": call("add", {}) + call("mul", {"x": None}) + call("add", {"x": -1.5}),
    "quotes": call("say", {"text": 'a "b" \\ {c} \n d', "deep": {"x": [{"y": "}"}]}}),
}
USAGE = {"stream_options": {"include_usage": True}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sending:
    """One way to send an answer."""

    chunk_tokens: int = 1
    fields: Mapping[str, Any] | None = None  # of the request
    is_dressed: bool = False  # other line ends, and comments between the events


SENDINGS = {
    "a token a chunk": Sending(),
    "two tokens a chunk, usage": Sending(chunk_tokens=2, fields=USAGE),
    "one chunk, usage": Sending(chunk_tokens=100, fields=USAGE),
    "two choices, usage": Sending(chunk_tokens=3, fields={"n": 2, **USAGE}),
    "a seed": Sending(fields={"seed": 7}),
    "CRLF and comments": Sending(is_dressed=True),
}
FAKES = [(text, sending) for text in (*PLAIN_TEXTS, *TOOL_TEXTS) for sending in SENDINGS]
REAL = json.loads(VLLM.read_text("utf-8"))["streams"]
NAMES = [*(f"{text}; {sending}" for text, sending in FAKES), *REAL]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStream:
    """One completion as it was on the wire, in both forms."""

    raw: bytes  # the stream
    answer: dict[str, Any]  # the same, not streamed

    @property
    def answer_id(self) -> bytes:
        """The id that the engine gave the stream; as long as ``chatcmpl-`` and 16 digits."""
        found = re.search(rb"chatcmpl-[0-9a-f]{16}", self.raw)
        assert found is not None
        return found[0]


def record(engine: FakeEngine, http: httpx.Client, name: str) -> RecordedStream:
    """Return the stream of one of ``NAMES``."""
    if name in REAL:
        events = [json.dumps(chunk, ensure_ascii=False) for chunk in REAL[name]["chunks"]]
        raw = "".join(f"data: {one}\n\n" for one in events).encode() + DONE
        return RecordedStream(raw=raw, answer=REAL[name]["answer"])
    text, sending = name.split("; ")
    return _ask(engine, http, text, SENDINGS[sending])


def _ask(engine: FakeEngine, http: httpx.Client, text: str, sending: Sending) -> RecordedStream:
    said = PLAIN_TEXTS.get(text, TOOL_TEXTS.get(text, ""))
    engine.answer = lambda model, messages: said
    engine.control(chunk_tokens=sending.chunk_tokens)
    body = {
        "model": "base",
        "messages": [QUESTION],
        "return_token_ids": True,
        "logprobs": True,
        **({"tools": TOOLS} if text in TOOL_TEXTS else {}),
        **(sending.fields or {}),
    }
    answer = http.post(CHAT, json=body | {"stream_options": None}).json()
    raw = http.post(CHAT, json=body | {"stream": True}).content
    if sending.is_dressed:
        raw = b": hello\n\n" + raw.replace(b"\n\n", b"\r\n\r\n: still here\r\n\r\n")
    return RecordedStream(raw=raw, answer=answer)
