"""What is known to go wrong between a client and an engine (P-15 to P-26), through the service.

The fake engine sends what an engine under the worst of circumstances would; the real client reads
it.
"""

import json
import time
from typing import Any

import httpx
import openai
import pytest

from tests.running import ServiceThread, ask, wait_until

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALLS_ADD = '<tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
JSON_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "sum", "schema": {"type": "object"}, "strict": True},
}


@pytest.fixture
def client(service: ServiceThread):
    url = f"{service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def wire(*events: Any, done: bool = True) -> list[str]:
    """Return events as a stream's pieces; text stands as it is."""
    written = [one if isinstance(one, str) else json.dumps(one) for one in events]
    raw = [f"data: {one}\n\n" for one in [*written, *(["[DONE]"] if done else [])]]
    return [one.encode().decode("latin-1") for one in raw]


def chunk(delta: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Return one chunk of ``chatcmpl-1``; without a delta it has no choices."""
    finish = fields.pop("finish_reason", None)
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    choices = [] if delta is None else [choice]
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": choices, **fields}


def newest_episode(service: ServiceThread) -> dict[str, Any]:
    [newest] = service.http.get("/v1/episodes").json()["data"][:1]
    shown: dict[str, Any] = service.http.get(f"/v1/episodes/{newest['id']}").json()
    return shown


def digested_outcome(service: ServiceThread) -> Any:
    """Return the outcome of the newest episode once it has been graded, if it is at all."""
    episodes, id = service.parts.store.episodes, newest_episode(service)["id"]

    def is_digested() -> bool:
        row = episodes.get(id)
        return row.digested_revision == row.revision

    wait_until(is_digested, 10)
    return newest_episode(service)["outcome"]


def only_call(service: ServiceThread) -> dict[str, Any]:
    [call] = newest_episode(service)["calls"]
    return dict(call)


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(one[6:]) for one in text.split("\n\n") if one.startswith("data: {")]


def test_chunks_without_choices_anywhere_lose_neither_text_nor_usage(service, engine, client):
    """P-15: an engine may send them in the middle, and the usage comes in one."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    engine.control(
        raw_chunks=wire(
            chunk(),
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "one "}),
            chunk(usage=None),
            chunk({"content": "two"}),
            chunk({}, finish_reason="stop"),
            chunk(usage=usage),
        )
    )
    stream = client.chat.completions.create(
        model="denizen",
        messages=[{"role": "user", "content": "count"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "one two"
    with_usage = [one for one in chunks if one.usage]
    assert with_usage == chunks[-1:]
    assert (with_usage[0].choices, with_usage[0].usage.total_tokens) == ([], 5)
    call = only_call(service)
    assert (call["message"]["content"], call["usage"]) == ("one two", usage)


def test_usage_is_the_last_chunk_with_no_choices_and_then_done(service):
    """P-15: exactly once when asked for, never else; it is recorded either way it came."""
    asked = ask("hi", stream=True, stream_options={"include_usage": True})
    response = service.http.post(CHAT, json=asked)
    *before, last = events(response.text)
    assert response.text.endswith("\n\ndata: [DONE]\n\n")
    assert last["choices"] == []
    assert not any(one.get("usage") for one in before)
    assert only_call(service)["usage"] == last["usage"]
    silent = service.http.post(CHAT, json=ask("hi", stream=True))
    assert not any(one.get("usage") for one in events(silent.text))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("says", "choice", "reason"),
    [
        (CALLS_ADD, "auto", "tool_calls"),
        (CALLS_ADD, None, "tool_calls"),
        (CALLS_ADD, "none", "stop"),
        ("no call", "auto", "stop"),
        ("no call", None, "stop"),
        (f"first, {CALLS_ADD}", "auto", "tool_calls"),
    ],
)
def test_the_reason_says_tool_calls_exactly_where_there_are_some(
    service, engine, says, choice, reason, stream
):
    """P-18: choice × stream × produced, the same for stream and plain."""
    engine.answer = lambda model, messages: says
    chosen = {} if choice is None else {"tool_choice": choice}
    response = service.http.post(CHAT, json=ask("1 + 2?", tools=[TOOL], stream=stream, **chosen))
    call = only_call(service)
    assert call["finish_reason"] == reason
    assert bool(call["message"].get("tool_calls")) is (reason == "tool_calls")
    shown = events(response.text)[-1] if stream else response.json()
    assert shown["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_of_the_token_limit_is_honoured(service, engine, name, stream):
    """P-19."""
    response = service.http.post(CHAT, json=ask("count to ten", stream=stream, **{name: 3}))
    assert response.status_code == 200
    assert engine.requests[-1].body[name] == 3
    call = only_call(service)
    assert (len(call["completion_token_ids"]), call["finish_reason"]) == (3, "length")


def test_both_names_of_the_token_limit_reach_the_engine_and_neither_is_made_up(service, engine):
    """P-19: with both, vLLM lets the new one win."""
    both = {"max_tokens": 4, "max_completion_tokens": 3}
    assert service.http.post(CHAT, json=ask("count", **both)).status_code == 200
    assert {name: engine.requests[-1].body.get(name) for name in both} == both
    service.http.post(CHAT, json=ask("count"))
    assert not both.keys() & engine.requests[-1].body.keys()


@pytest.mark.parametrize("stream", [False, True])
def test_a_developers_words_reach_the_engine_as_the_systems(service, engine, stream):
    """P-20: no chat template has the role; the record keeps what the client said."""
    messages = [
        {"role": "developer", "content": "Answer in French."},
        {"role": "user", "content": "Hello"},
    ]
    response = service.http.post(CHAT, json=ask("") | {"messages": messages, "stream": stream})
    assert response.status_code == 200
    forwarded = engine.requests[-1].body["messages"]
    assert forwarded == [{"role": "system", "content": "Answer in French."}, messages[1]]
    assert only_call(service)["request"]["messages"] == messages


def test_a_client_that_leaves_stops_the_engine_within_a_second_and_leaves_what_came(
    service, engine
):
    """P-22: the tokens so far stay, and nothing is learned from them."""
    engine.control(chunk_delay_s=0.02, stall_after_chunks=4)
    asked = ask("x", stream=True, metadata={"reference": "x"})
    with service.http.stream("POST", CHAT, json=asked) as response:
        lines = (line for line in response.iter_lines() if line)
        for _ in range(3):
            next(lines)
    left_at = time.monotonic()
    wait_until(lambda: engine.requests[-1].disconnected, 5)
    assert time.monotonic() - left_at < 1.0
    wait_until(lambda: newest_episode(service)["calls"] != [], 2)
    call = only_call(service)
    assert (call["status"], call["not_learnable_reason"]) == ("cancelled", "cancelled")
    assert 2 <= len(call["completion_token_ids"]) <= 3
    assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"])
    assert digested_outcome(service)["value"] is None
    assert newest_episode(service)["grades"] == []


def test_a_client_that_leaves_before_a_plain_answer_stops_the_engine_too(service, engine):
    """P-22."""
    engine.control(delay_s=30)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{service.http.base_url}{CHAT}", json=ask("x"), timeout=0.2)
    left_at = time.monotonic()
    wait_until(lambda: engine.requests[-1].disconnected, 5)
    assert time.monotonic() - left_at < 1.0
    wait_until(lambda: service.http.get("/v1/episodes").json()["data"] != [], 2)
    call = only_call(service)
    assert (call["status"], call["learnable"]) == ("cancelled", False)


FAILURES: dict[str, dict[str, Any]] = {
    "refused at once": {"http_error": 400},
    "failed at once": {"http_error": 500},
    "an error event": {"error_after_chunks": 3},
    "cut": {"cut_after_chunks": 3},
    "cut before the first chunk": {"cut_after_chunks": 0},
    "ended without DONE": {"raw_chunks": wire(chunk({"content": "half"}), done=False)},
    "no JSON": {"raw_chunks": wire(chunk({"content": "half"}), "half a chunk")},
    "an error event first": {"raw_chunks": wire({"error": {"message": "no", "code": 500}})},
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_is_never_a_short_success(service, engine, client, failure):
    """P-23: the client raises, the record says error, and there is no reward, not a reward of 0."""
    engine.control(**FAILURES[failure])
    with pytest.raises(openai.APIError):
        list(
            client.chat.completions.create(
                model="denizen",
                messages=[{"role": "user", "content": "x"}],
                stream=True,
                metadata={"reference": "x"},
            )
        )
    call = only_call(service)
    assert call["status"] == "error"
    assert call["error"]
    assert call["finish_reason"] is None
    assert call["learnable"] is False
    assert digested_outcome(service)["value"] is None
    assert newest_episode(service)["grades"] == []


def test_after_an_error_in_mid_stream_neither_stop_nor_done_follows(service, engine):
    """P-23."""
    engine.control(error_after_chunks=2)
    response = service.http.post(CHAT, json=ask("x", stream=True))
    assert response.status_code == 200  # what had been sent by then cannot be taken back
    assert "[DONE]" not in response.text
    assert '"finish_reason":"stop"' not in response.text
    error = events(response.text)[-1]["error"]
    assert "ordered by the test" in error["message"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_passes_under_its_own_name_and_is_kept_apart(service, engine, name):
    """P-25: byte for byte to the client, in a field of its own in the record."""
    deltas = [{"role": "assistant", "content": ""}, {name: "é hm"}, {name: "m\n"}, {"content": "4"}]
    sent = [chunk(delta) for delta in deltas]
    engine.control(raw_chunks=wire(*sent, chunk({}, finish_reason="stop")))
    response = service.http.post(CHAT, json=ask("2 + 2?", stream=True))
    assert [one["choices"][0]["delta"] for one in events(response.text)][:4] == deltas
    message = only_call(service)["message"]
    assert message == {"role": "assistant", "content": "4", "reasoning": "é hmm\n"}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thinking_that_a_client_sends_back_reaches_the_engine(service, engine, name):
    """P-25: what the model saw is what was sent, and it is the same conversation."""
    first = service.http.post(CHAT, json=ask("2 + 2?"))
    said = first.json()["choices"][0]["message"]["content"]
    history = [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": said, name: "hmm"},
        {"role": "user", "content": "sure?"},
    ]
    second = service.http.post(CHAT, json=ask("") | {"messages": history})
    assert engine.requests[-1].body["messages"] == history
    assert second.headers["x-denizen-episode-id"] == first.headers["x-denizen-episode-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema_beside_tools_is_refused_and_silences_neither(service, engine, stream):
    """P-26: vLLM would force the form on every answer, so that no tool could be called."""
    asked = ask("1 + 2?", tools=[TOOL], response_format=JSON_SCHEMA, stream=stream)
    refused = service.http.post(CHAT, json=asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")
    assert service.http.post(CHAT, json=asked | {"tool_choice": "none"}).status_code == 200
    forwarded = engine.requests[-1].body
    assert (forwarded["tools"], forwarded["response_format"]) == ([TOOL], JSON_SCHEMA)
