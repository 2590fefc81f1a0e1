"""Tools through the whole service: asked for, called, recorded, answered, continued."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Arithmetic.",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
        },
    }
    for name in ("add", "mul")
]
SAID = (
    "One moment. "
    '<tool_call>{"name": "add", "arguments": {"x": 1, "unit": "é"}}</tool_call>'
    '<tool_call>{"name": "mul", "arguments": {"x": [2, 3]}}</tool_call>'
)
CALLS = [("add", '{"x": 1, "unit": "é"}'), ("mul", '{"x": [2, 3]}')]
QUESTION = [{"role": "user", "content": "1 + 2 and 2 * 3?"}]


@pytest.fixture
def caller(engine: FakeEngine) -> FakeEngine:
    """Return an engine whose model calls two tools, and thanks for their results."""
    engine.answer = lambda model, messages: "Thanks." if messages[-1]["role"] == "tool" else SAID
    return engine


@pytest.fixture
def client(service: ServiceThread) -> Iterator[openai.OpenAI]:
    url = f"{service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def post(service: ServiceThread, messages: list[dict[str, Any]], **fields: Any) -> httpx.Response:
    body = {"model": "denizen", "messages": messages, "tools": TOOLS} | fields
    response = service.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response


def calls_of(service: ServiceThread, response: httpx.Response) -> list[dict[str, Any]]:
    path = f"/v1/episodes/{response.headers['x-denizen-episode-id']}"
    calls: list[dict[str, Any]] = service.http.get(path).json()["calls"]
    return calls


def named(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]


def test_the_engine_is_asked_with_the_tools_and_chooses_by_itself(service, caller):
    for is_streamed in (False, True):
        post(service, QUESTION, stream=is_streamed, tool_choice="auto", parallel_tool_calls=True)
        asked = caller.requests[-1].body
        assert (asked["tools"], asked["tool_choice"]) == (TOOLS, "auto")
        assert asked["parallel_tool_calls"] is True
        post(service, QUESTION, stream=is_streamed)
        assert "tool_choice" not in caller.requests[-1].body


def test_the_openai_client_gets_the_calls_of_a_plain_answer(service, caller, client):
    answer = client.chat.completions.create(model="denizen", messages=QUESTION, tools=TOOLS)
    [choice] = answer.choices
    calls = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == CALLS
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "One moment. "
    [newest] = service.http.get("/v1/episodes").json()["data"]
    [recorded] = service.http.get(f"/v1/episodes/{newest['id']}").json()["calls"]
    kept = recorded["message"]["tool_calls"]
    assert named(kept) == CALLS
    assert [call["id"] for call in kept] == [call.id for call in calls]


@pytest.mark.parametrize("chunk_tokens", [1, 2, 3, 100])
def test_the_openai_client_gets_the_calls_of_a_streamed_answer(
    service, caller, client, chunk_tokens
):
    """P-16, P-17: index, id and order are kept however the answer is cut."""
    caller.control(chunk_tokens=chunk_tokens)
    with client.chat.completions.stream(model="denizen", messages=QUESTION, tools=TOOLS) as stream:
        [choice] = stream.get_final_completion().choices
    calls = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == CALLS
    assert [call.index for call in calls] == [0, 1]
    assert len({call.id for call in calls}) == 2
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "One moment. ")


def test_a_streamed_call_is_recorded_as_a_plain_one_with_exact_tokens(service, caller):
    plain, streamed = (
        calls_of(service, post(service, QUESTION, stream=is_streamed))[-1]
        for is_streamed in (False, True)
    )
    for call in (plain, streamed):
        assert named(call["message"]["tool_calls"]) == CALLS
        assert call["message"]["content"] == "One moment. "
        assert call["finish_reason"] == "tool_calls"
        assert call["completion_token_ids"] == [*caller.tokenize(SAID), 2]
        assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"])
        assert call["prompt_token_ids"] == caller.prompt_ids(QUESTION, TOOLS)
        assert call["learnable"] is True


def test_chunks_that_exist_only_for_token_ids_are_not_passed_on(service, caller):
    """Tokens inside the markup come with an empty delta when ids are asked for."""
    quiet = events(post(service, QUESTION, stream=True).text)
    exact = events(post(service, QUESTION, stream=True, return_token_ids=True).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in quiet]
    assert all(deltas[:-1])
    assert quiet[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert len(exact) > len(quiet)
    direct = {"model": "base", "messages": QUESTION, "tools": TOOLS, "stream": True}
    unasked = events(httpx.post(f"{caller.url}/v1/chat/completions", json=direct).text)
    assert len(unasked) == len(quiet)  # exactly what the engine sends to who asks for no ids


INTERLEAVED = [
    {"role": "assistant", "content": ""},
    {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "add"}}]},
    {"tool_calls": [{"index": 2, "id": "c", "type": "function", "function": {"name": "sub"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
    {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "mul"}}]},
    {
        "tool_calls": [
            {"index": 1, "function": {"arguments": '{"y": "é'}},
            {"index": 0, "function": {"arguments": ": 1}"}},
            {"index": 2, "function": {"arguments": "{}"}},
        ]
    },
    {"tool_calls": [{"index": 1, "function": {"arguments": '"}'}}]},
    {},
]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_interleaved_calls_pass_unchanged_and_are_kept_apart(service, caller, size):
    """P-16: three calls at once, cut anywhere, also in a character."""
    sent = []
    for place, delta in enumerate(INTERLEAVED):
        is_last = place == len(INTERLEAVED) - 1
        choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls" if is_last else None}
        sent.append({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [choice]})
    raw = "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in sent)
    wire = f"{raw}data: [DONE]\n\n".encode().decode("latin-1")
    caller.control(raw_chunks=[wire[at : at + size] for at in range(0, len(wire), size)])
    response = post(service, QUESTION, stream=True)
    assert [e["choices"][0]["delta"] for e in events(response.text)] == INTERLEAVED
    [call] = calls_of(service, response)
    kept = call["message"]["tool_calls"]
    assert [one["id"] for one in kept] == ["a", "b", "c"]
    assert named(kept) == [("add", '{"x": 1}'), ("mul", '{"y": "é"}'), ("sub", "{}")]


@pytest.mark.parametrize("content", ["null", "empty", "missing"])
@pytest.mark.parametrize("is_streamed", [False, True])
def test_results_of_tools_continue_the_episode_however_no_content_is_spelled(
    service, caller, content, is_streamed
):
    """P-21: no turn is refused, dropped, or taken for another conversation."""
    only_calls = SAID.removeprefix("One moment. ")
    caller.answer = lambda model, messages: (
        "Thanks." if messages[-1]["role"] == "tool" else only_calls
    )
    first = post(service, QUESTION, stream=is_streamed)
    [call] = calls_of(service, first)
    said = {"role": "assistant", "tool_calls": call["message"]["tool_calls"]}
    if content != "missing":
        said["content"] = None if content == "null" else ""
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "3"} for one in said["tool_calls"]
    ]
    history = [*QUESTION, said, *results]
    second = post(service, history, stream=is_streamed)
    assert caller.requests[-1].body["messages"] == history
    calls = calls_of(service, second)
    assert [one["parent"] for one in calls] == [None, call["id"]]
    assert calls[1]["message"]["content"] == "Thanks."
    so_far = call["prompt_token_ids"] + call["completion_token_ids"]
    assert calls[1]["prompt_token_ids"][: len(so_far)] == so_far
    third = post(
        service,
        [*history, {"role": "assistant", "content": "Thanks."}, *QUESTION],
        stream=is_streamed,
    )
    assert len(calls_of(service, third)) == 3


def test_other_arguments_are_another_conversation(service, caller):
    first = post(service, QUESTION)
    message = first.json()["choices"][0]["message"]
    other = copy.deepcopy(message)
    other["tool_calls"][0]["function"]["arguments"] = '{"x": 7}'
    results = [
        {"role": "tool", "tool_call_id": one["id"], "content": "3"} for one in message["tool_calls"]
    ]
    same = post(service, [*QUESTION, message, *results])
    changed = post(service, [*QUESTION, other, *results])
    assert len(calls_of(service, same)) == 2
    assert len(calls_of(service, changed)) == 1


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "tool_calls"),
        ({"tool_choice": "auto"}, "tool_calls"),
        ({"tool_choice": "none"}, "stop"),
        ({"tools": None}, "stop"),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_reason_agrees_with_what_was_produced(service, caller, fields, reason, is_streamed):
    """P-18: "tool_calls" where there are calls, and only there."""
    body = ask("1 + 2?", tools=TOOLS, stream=is_streamed) | fields
    response = service.http.post("/v1/chat/completions", json=body)
    [call] = calls_of(service, response)
    assert call["finish_reason"] == reason
    assert ("tool_calls" in call["message"]) is (reason == "tool_calls")
    shown = events(response.text)[-1] if is_streamed else response.json()
    assert shown["choices"][0]["finish_reason"] == reason


def test_what_the_engine_says_against_a_tools_request_reaches_the_client(service, caller):
    caller.control(http_error=400)
    body = ask("hi", tools=TOOLS)
    response = service.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "ordered by the test"
