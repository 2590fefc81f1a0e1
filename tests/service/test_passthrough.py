"""P-30: what stands between client and engine changes only what the contract says.

Each request is sent twice, to the engine and through the service, and what either side saw is
compared.
"""

import json
from typing import Any

import httpx
import pytest

from tests.running import ask

CHAT = "/v1/chat/completions"
ADDED_UPSTREAM = {"return_token_ids": True, "logprobs": True}
ADDED_HEADERS = {"x-denizen-call-id", "x-denizen-episode-id", "x-denizen-adapter"}
OF_THE_SERVER = {"date", "server", "content-length", "transfer-encoding", "connection"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stream": {"stream": True},
    "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
    "two choices": {"n": 2},
    "two choices, streamed": {"n": 2, "stream": True},
    "tools": {"tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": False},
    "tools, streamed": {"tools": [TOOL], "stream": True},
    "log-probabilities": {"logprobs": True, "top_logprobs": 0},
    "log-probabilities and ids, streamed": {
        "logprobs": True,
        "return_token_ids": True,
        "stream": True,
    },
    "all of the sampling": {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "seed": 3,
        "stop": ["é", "\n\n"],
        "logit_bias": {"5": -1.0},
        "max_completion_tokens": 4,
        "user": "ann",
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": False},
        "response_format": {"type": "json_object"},
    },
}
SAID = 'é 日本 🙂 "q" \\ <tool_call>{"name": "add", "arguments": {"x": "ü"}}</tool_call>'


@pytest.fixture
def engine(engine):
    engine.answer = lambda model, messages: SAID
    return engine


def anonymous(text: str) -> list[str]:
    """Return an answer's lines without what is new in each: ids, the second, the model's name."""
    return [_anonymous_line(line) for line in text.split("\n")]


def _anonymous_line(line: str) -> str:
    opening, brace, rest = line.partition("{")
    if not brace:
        return line
    body = json.loads(brace + rest)
    for name in ("id", "model", "created"):
        body[name] = None
    for choice in body["choices"]:
        for call in (choice.get("message") or choice.get("delta")).get("tool_calls") or ():
            if "id" in call:
                call["id"] = None
    return opening + json.dumps(body)  # in the order of the wire


@pytest.mark.parametrize("name", REQUESTS)
def test_the_client_gets_what_the_engine_says_to_who_asks_it_directly(service, engine, name):
    body = ask("hello", **REQUESTS[name])
    direct = httpx.post(engine.url + CHAT, json=body | {"model": "base"})
    through = service.http.post(CHAT, json=body)
    assert through.status_code == direct.status_code == 200
    assert anonymous(through.text) == anonymous(direct.text)
    new = set(through.headers) - set(direct.headers) - OF_THE_SERVER
    assert new - {"cache-control"} == ADDED_HEADERS
    kinds = [one.headers["content-type"].partition(";")[0] for one in (direct, through)]
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("name", REQUESTS)
def test_the_engine_gets_what_the_client_says_and_is_asked_for_ids(service, engine, name):
    body = ask("hello", **REQUESTS[name])
    service.http.post(CHAT, json=body | {"metadata": {"task": "t"}, "store": True})
    asked = engine.requests[-1].body
    assert asked.pop("cache_salt")
    assert asked == body | {"model": "base"} | ADDED_UPSTREAM


def test_a_prefix_cache_is_shared_by_the_requests_of_one_life_of_the_service(service, engine):
    for text in ("one", "two"):
        service.http.post(CHAT, json=ask(text))
    salts = [one.body["cache_salt"] for one in engine.requests if one.path == CHAT]
    assert len(set(salts[-2:])) == 1
    refused = service.http.post(CHAT, json=ask("three", cache_salt="mine"))
    assert refused.status_code == 400


def test_messages_reach_the_engine_as_they_were_written(service, engine):
    messages = [
        {"role": "system", "content": "", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "é", "cache_control": {"x": 1}}]},
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": None, "audio": None},
        {"role": "tool", "tool_call_id": "c1", "content": "\u2028"},
        {"role": "user", "content": "🙂 last", "own": {"deep": [1, 2.5, None, True]}},
    ]
    service.http.post(CHAT, json=ask("") | {"messages": messages})
    assert engine.requests[-1].body["messages"] == messages


def test_the_clients_own_headers_and_key_stay_here(service, engine):
    headers = {
        "authorization": "Bearer sk-secret",
        "x-api-key": "sk-other",
        "cookie": "session=1",
        "x-stainless-lang": "python",
        "x-denizen-session": "s",
    }
    service.http.post(CHAT, json=ask("hi"), headers=headers)
    sent = {name.lower() for name in engine.requests[-1].headers}
    assert not sent & headers.keys()
    assert "sk-" not in json.dumps(engine.requests[-1].headers)


@pytest.mark.parametrize("status", [400, 404, 422])
def test_what_the_engine_says_against_a_request_is_said_to_the_client(service, engine, status):
    engine.control(http_error=status)
    direct = httpx.post(engine.url + CHAT, json=ask("x") | {"model": "base"})
    through = service.http.post(CHAT, json=ask("x"))
    assert through.status_code == direct.status_code == status
    assert through.json()["error"]["message"] == direct.json()["error"]["message"]
