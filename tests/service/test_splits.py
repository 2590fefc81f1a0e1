"""P-17: however a stream is cut on the wire, record and client message equal the plain answer's."""

import copy
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from agent.capture import Capture
from agent.dialects.chat import OpenAiReply
from agent.engine_request import parse_json
from agent.policy import PolicyClient
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread
from tests.service.streams import NAMES, QUESTION, TOOLS, RecordedStream, record


class Wire:
    """An engine's answer whose bytes arrive in the given pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.content = self
        self._pieces = pieces

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class WiredClient(PolicyClient):
    """The engine's client over pieces in memory instead of a connection."""

    pieces: Sequence[bytes] = ()

    @asynccontextmanager
    async def _request(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        yield Wire(self.pieces)

    async def events(self, *pieces: bytes) -> list[bytes]:
        self.pieces = [piece for piece in pieces if piece]
        return [data async for data in self.stream({})]


@pytest.fixture(scope="module")
def streams() -> Iterator[dict[str, RecordedStream]]:
    with FakeEngine() as engine, httpx.Client(base_url=engine.url) as http:
        yield {name: record(engine, http, name) for name in NAMES}


@pytest.fixture
def client() -> WiredClient:
    return WiredClient("http://nowhere")


class Seen(Capture):
    """What is kept of an answer, and what a client sees of it that asked for nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self._reply = OpenAiReply(
            model="denizen", asked_logprobs=False, asked_token_ids=False, asked_usage=True
        )

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        self.absorb(body)
        return self._reply.body(body)

    def chunk(self, body: dict[str, Any]) -> dict[str, Any] | None:
        self.absorb(body)
        events = [json.loads(event[6:]) for event in self._reply.events(body)]
        return events[0] if events else None


def new_capture() -> Seen:
    return Seen()


def nameless(calls: Sequence[dict[str, Any]]) -> list[tuple[str, Any]]:
    """Return tool calls without their ids, which are new for each answer."""
    functions = [one["function"] for one in calls]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def kept(capture: Capture) -> dict[int, Any]:
    """Return all that is recorded of each choice."""
    found = {}
    for index, choice in capture.choices.items():
        message = copy.deepcopy(choice.message() or {})
        calls = nameless(message.pop("tool_calls", []))
        tokens = (capture.prompt_token_ids, choice.token_ids, choice.known_logprobs())
        found[index] = (message, calls, tokens, choice.finish_reason)
    return found


def told(answer: dict[str, Any]) -> dict[int, Any]:
    """Return what a client reads in each choice of a plain answer."""
    return {
        choice["index"]: (
            choice["message"]["content"] or "",
            nameless(choice["message"].get("tool_calls") or []),
            choice["finish_reason"],
        )
        for choice in answer["choices"]
    }


def assembled(chunks: Sequence[dict[str, Any]]) -> dict[int, Any]:
    """Return what a client puts together from the chunks of a stream; written independently."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    calls: dict[int, dict[int, dict[str, Any]]] = {}
    for choice in (one for chunk in chunks for one in chunk["choices"]):
        index, delta = choice["index"], choice["delta"]
        texts[index] = texts.get(index, "") + (delta.get("content") or "")
        reasons[index] = choice["finish_reason"] or reasons.get(index, "")
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(index, {}).setdefault(part["index"], {})
            for key, value in part["function"].items():
                call[key] = call.get(key, "") + value
    return {
        index: (
            text,
            nameless([{"function": one} for _, one in sorted(calls.get(index, {}).items())]),
            reasons[index],
        )
        for index, text in texts.items()
    }


def test_there_are_fifty_streams_of_every_kind(streams: dict[str, RecordedStream]) -> None:
    assert len(streams) == len(NAMES) >= 50
    assert any(b'"tool_calls"' in stream.raw for stream in streams.values())
    assert any(b'"choices":[],' in stream.raw for stream in streams.values())
    assert any(max(stream.raw) >= 0xF0 for stream in streams.values())  # four-byte characters
    assert "vllm: greedy" in streams


@pytest.mark.parametrize("name", NAMES)
async def test_a_stream_is_recorded_and_shown_as_the_plain_answer(
    streams: dict[str, RecordedStream], client: WiredClient, name: str
) -> None:
    stream = streams[name]
    plain, streamed = new_capture(), new_capture()
    shown = plain.answer(copy.deepcopy(stream.answer))
    views = [streamed.chunk(parse_json(data)) for data in await client.events(stream.raw)]
    assert kept(streamed) == kept(plain)
    assert kept(plain).keys() == told(shown).keys()
    assert all(choice[2][1] and choice[2][2] for choice in kept(streamed).values())
    assert assembled([view for view in views if view is not None]) == told(shown)
    if b'"usage"' in stream.raw:
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert plain.usage is not None
        assert streamed.usage == {count: plain.usage[count] for count in counts}


@pytest.mark.parametrize("name", NAMES)
async def test_a_cut_at_any_byte_changes_no_event(
    streams: dict[str, RecordedStream], client: WiredClient, name: str
) -> None:
    """Record and client message are made of the events alone, so they are the same as well."""
    raw = streams[name].raw
    whole = await client.events(raw)
    assert len(whole) > 1
    for cut in range(len(raw)):
        assert await client.events(raw[:cut], raw[cut:]) == whole, f"cut at byte {cut}"


async def test_a_byte_at_a_time_changes_no_event(
    streams: dict[str, RecordedStream], client: WiredClient
) -> None:
    for name, stream in streams.items():
        raw = stream.raw
        single = [raw[place : place + 1] for place in range(len(raw))]
        assert await client.events(*single) == await client.events(raw), name


def cuts(raw: bytes) -> list[int]:
    """Return places where a cut is most likely to hurt: in a character, a line end, a marker."""
    in_character = next((place for place, byte in enumerate(raw) if 0x80 <= byte < 0xC0), 1)
    end = raw.index(b"\n")
    return [3, end, end + 1, in_character, raw.rindex(b"[DONE]") + 2, len(raw) - 1]


@pytest.mark.parametrize(
    "name",
    [
        "utf-8; two tokens a chunk, usage",
        "separators; CRLF and comments",
        "words and calls; a token a chunk",
        "three calls; one chunk, usage",
        "vllm: greedy with usage",
    ],
)
def test_a_cut_stream_through_the_service_is_the_plain_answer(
    streams: dict[str, RecordedStream], service: ServiceThread, engine: FakeEngine, name: str
) -> None:
    stream = streams[name]
    plain = new_capture()
    expected = told(plain.answer(copy.deepcopy(stream.answer)))[0]
    for number, cut in enumerate(cuts(stream.raw)):
        raw = stream.raw.replace(stream.answer_id, b"chatcmpl-%016d" % number).decode("latin-1")
        engine.control(raw_chunks=[raw[:cut], raw[cut:]])
        text, calls, reason, episode_id = chat(service)
        assert (text, calls, reason) == expected
        [recorded] = service.http.get(f"/v1/episodes/{episode_id}").json()["calls"]
        _assert_recorded(recorded, kept(plain)[0])


def chat(service: ServiceThread) -> tuple[str, list[tuple[str, Any]], str | None, str]:
    """Ask with the real client, streamed; return what it assembled, and the episode."""
    client = openai.OpenAI(base_url=f"{service.http.base_url}/v1", api_key="none", max_retries=0)
    with (
        client,
        client.chat.completions.with_streaming_response.create(
            model="denizen",
            messages=[QUESTION],  # type: ignore[list-item]
            tools=TOOLS,  # type: ignore[arg-type]
            stream=True,
        ) as response,
    ):
        chunks = [chunk.model_dump() for chunk in response.parse()]
        episode_id = response.headers["x-denizen-episode-id"]
    text, calls, reason = assembled([_without_nulls(chunk) for chunk in chunks])[0]
    return text, calls, reason, episode_id


def _without_nulls(chunk: dict[str, Any]) -> dict[str, Any]:
    """Take out of the client's fragments of calls what the wire did not say."""
    for choice in chunk["choices"]:
        for part in choice["delta"].get("tool_calls") or ():
            part["function"] = {k: v for k, v in part["function"].items() if v is not None}
    return chunk


def _assert_recorded(call: dict[str, Any], expected: Any) -> None:
    message, calls, (prompt, ids, logprobs), reason = expected
    said = dict(call["message"])
    assert nameless(said.pop("tool_calls", [])) == calls
    assert said == message
    assert call["prompt_token_ids"] == prompt
    assert call["completion_token_ids"] == ids
    assert call["sampler_logprobs"] == pytest.approx(logprobs)
    assert (call["finish_reason"], call["status"]) == (reason, "ok")
