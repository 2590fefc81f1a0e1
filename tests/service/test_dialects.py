"""Every dialect through the whole service: answered in its own words, recorded all alike."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.agent.told import read_events
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until

SAID = [{"role": "user", "content": "3 * 4?"}]
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"model": "denizen", "messages": SAID},
    "responses": {"model": "denizen", "input": "3 * 4?"},
    "messages": {"model": "denizen", "messages": SAID, "max_tokens": 100},
    "completions": {"model": "denizen", "prompt": "3 * 4?"},
}
CONVERSATIONS = ["chat/completions", "responses", "messages"]
TWO_CALLS = (
    'Well. <tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'
    '<tool_call>{"name": "mul", "arguments": {}}</tool_call>'
)


def post(service: ServiceThread, dialect: str, path: str = "/v1", **fields: Any) -> httpx.Response:
    headers = fields.pop("headers", None)
    body = BODIES[dialect] | fields
    return service.http.post(f"{path}/{dialect}", json=body, headers=headers)


def episode_of(service: ServiceThread, response: httpx.Response) -> dict[str, Any]:
    path = f"/v1/episodes/{response.headers['x-denizen-episode-id']}"
    shown: dict[str, Any] = service.http.get(path).json()
    return shown


def newest_call(service: ServiceThread) -> dict[str, Any]:
    newest = service.http.get("/v1/episodes").json()["data"][0]["id"]
    shown: dict[str, Any] = service.http.get(f"/v1/episodes/{newest}").json()["calls"][-1]
    return shown


def text_of(dialect: str, body: dict[str, Any]) -> str:
    """Return what a whole answer says."""
    if dialect == "responses":
        return "".join(part["text"] for item in body["output"] for part in item["content"])
    if dialect == "messages":
        return "".join(block["text"] for block in body["content"])
    [choice] = body["choices"]
    return str(choice["text"] if dialect == "completions" else choice["message"]["content"])


def streamed_text(dialect: str, text: str) -> str:
    """Return what a stream says."""
    events = read_events(text)
    if dialect == "responses":
        return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    if dialect == "messages":
        deltas = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        return "".join(delta["text"] for delta in deltas)
    choices = [choice for event in events for choice in event["choices"]]
    if dialect == "completions":
        return "".join(choice["text"] for choice in choices)
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", BODIES)
def test_an_answer_has_the_contracts_headers_and_an_exact_record(service, engine, dialect, stream):
    response = post(service, dialect, stream=stream)
    assert response.status_code == 200
    [call] = episode_of(service, response)["calls"]
    told = streamed_text(dialect, response.text) if stream else text_of(dialect, response.json())
    assert call["message"] == {"role": "assistant", "content": told}
    assert told == engine.answer("base", SAID)
    assert response.headers["x-denizen-call-id"] == call["id"]
    assert response.headers["x-denizen-adapter"] == "base"
    assert call["completion_token_ids"] == [*engine.tokenize(told), 2]
    prompt = engine.tokenize("3 * 4?") if dialect == "completions" else engine.prompt_ids(SAID)
    assert call["prompt_token_ids"] == prompt
    assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"])
    assert (call["status"], call["finish_reason"], call["learnable"]) == ("ok", "stop", True)
    assert not re.search(r'"(token_)?logprobs":[^n\[]|"\w*token_ids":\[', response.text)
    assert '"base"' not in response.text


@pytest.mark.parametrize("dialect", BODIES)
def test_the_body_carries_the_calls_id_and_the_name_that_was_asked_for(service, dialect):
    response = post(service, dialect)
    assert response.json()["id"] == response.headers["x-denizen-call-id"]
    assert response.json()["model"] == "denizen"
    first = read_events(post(service, dialect, stream=True).text)[0]
    opening = first.get("response") or first.get("message") or first
    assert opening["model"] == "denizen"
    assert opening["id"]


@pytest.mark.parametrize("dialect", BODIES)
def test_a_session_in_the_path_and_the_headers_count_in_every_dialect(service, dialect):
    first = post(service, dialect, "/s/job/v1")
    headers = {"x-denizen-session": "job", "x-denizen-learn": "off"}
    second = post(service, dialect, headers=headers)
    assert episode_of(service, second)["id"] == episode_of(service, first)["id"]
    calls = episode_of(service, second)["calls"]
    assert [call["not_learnable_reason"] for call in calls] == [None, "learning_off"]
    unseen = post(service, dialect, headers={"x-denizen-record": "off"})
    ours = [name for name in unseen.headers if name.startswith("x-denizen")]
    assert ours == ["x-denizen-adapter"]
    assert len(episode_of(service, second)["calls"]) == 2


@pytest.mark.parametrize("dialect", BODIES)
def test_metadata_steers_the_record_and_never_reaches_the_engine(service, engine, dialect):
    metadata = {"reference": "12", "task": "products"}
    response = post(service, dialect, metadata=metadata)
    episode = episode_of(service, response)
    assert (episode["reference"], episode["task_key"]) == ("12", "products")
    assert episode["task_text"] == "3 * 4?"
    assert "metadata" not in engine.requests[-1].body


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_without_a_session_is_one_episode_of_messages(service, stream):
    first = post(service, "messages", stream=stream)
    said = episode_of(service, first)["calls"][0]["message"]["content"]
    block = {"type": "text", "text": said}
    history = [*SAID, {"role": "assistant", "content": [block]}, *SAID]
    second = post(service, "messages", messages=history, stream=stream)
    calls = episode_of(service, second)["calls"]
    assert [call["parent"] for call in calls] == [None, calls[0]["id"]]
    so_far = calls[0]["prompt_token_ids"] + calls[0]["completion_token_ids"]
    assert calls[1]["prompt_token_ids"][: len(so_far)] == so_far


@pytest.mark.parametrize("stream", [False, True])
def test_items_that_are_sent_back_continue_the_episode_of_responses(service, engine, stream):
    engine.answer = lambda model, messages: "Ah." if messages[-1]["role"] == "tool" else TWO_CALLS
    tools = [{"type": "function", "name": name} for name in ("add", "mul")]
    first = post(service, "responses", tools=tools, stream=stream)
    body = read_events(first.text)[-1]["response"] if stream else first.json()
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "3"}
        for item in body["output"]
        if item["type"] == "function_call"
    ]
    history = [{"role": "user", "content": "3 * 4?"}, *body["output"], *results]
    second = post(service, "responses", input=history, tools=tools, stream=stream)
    calls = episode_of(service, second)["calls"]
    assert [call["parent"] for call in calls] == [None, body["id"]]
    so_far = calls[0]["prompt_token_ids"] + calls[0]["completion_token_ids"]
    assert calls[1]["prompt_token_ids"][: len(so_far)] == so_far


def test_a_conversation_may_change_its_dialect(service):
    first = post(service, "messages")
    said = first.json()["content"][0]["text"]
    history = [*SAID, {"role": "assistant", "content": said}, {"role": "user", "content": "so?"}]
    second = post(service, "chat/completions", messages=history)
    third = post(service, "responses", input="and?", previous_response_id=second.json()["id"])
    assert len(episode_of(service, third)["calls"]) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_from_the_one_that_is_named(service, engine, stream):
    first = post(service, "responses", instructions="Be brief.")
    told = {"previous_response_id": first.json()["id"], "stream": stream}
    second = post(service, "responses", input="and now?", **told)
    assert engine.requests[-1].body["messages"] == [
        {"role": "user", "content": "3 * 4?"},
        {"role": "assistant", "content": text_of("responses", first.json())},
        {"role": "user", "content": "and now?"},
    ]
    calls = episode_of(service, second)["calls"]
    assert [call["parent"] for call in calls] == [None, first.json()["id"]]


def test_of_equal_answers_the_one_that_is_named_is_continued(service):
    first, other = post(service, "responses"), post(service, "responses")
    ids = [first.json()["id"], other.json()["id"]]
    for response_id in ids:
        later = post(service, "responses", input="and?", previous_response_id=response_id)
        assert episode_of(service, later)["calls"][-1]["parent"] == response_id


def test_a_response_can_be_continued_after_a_restart(engine: FakeEngine, tmp_path: Path):
    with ServiceThread(tmp_path, engine.url) as service:
        first = post(service, "responses").json()["id"]
    with ServiceThread(tmp_path, engine.url) as service:
        second = post(service, "responses", input="and?", previous_response_id=first)
        assert second.status_code == 200
        assert episode_of(service, second)["calls"][-1]["parent"] == first


def test_a_response_that_was_not_recorded_cannot_be_continued(service):
    first = post(service, "responses", headers={"x-denizen-record": "off"}).json()["id"]
    refused = post(service, "responses", input="and?", previous_response_id=first)
    error = refused.json()["error"]
    assert refused.status_code == 400
    assert error["param"] == "previous_response_id"
    assert error["code"] == "previous_response_not_found"
    assert "x-denizen-record: off" in error["message"]


def error_of(dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the error of a body in its dialect's form."""
    if dialect == "messages":
        assert body["type"] == "error"
    error: dict[str, Any] = body["error"]
    names = {"type", "message", "param"}
    assert set(error) == (names if dialect == "messages" else names | {"code"})
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", BODIES)
def test_what_fails_before_the_first_byte_has_its_status_and_the_dialects_body(
    service, engine, dialect, stream
):
    unknown = post(service, dialect, model="gpt-5", stream=stream)
    assert (unknown.status_code, error_of(dialect, unknown.json())["param"]) == (404, "model")
    bad = post(service, dialect, no_such_thing=1, stream=stream)
    assert (bad.status_code, error_of(dialect, bad.json())["param"]) == (400, "no_such_thing")
    for ordered, shown in ((400, 400), (500, 502), (503, 503)):
        engine.control(http_error=ordered)
        failed = post(service, dialect, stream=stream)
        assert failed.status_code == shown
        assert "ordered by the test" in error_of(dialect, failed.json())["message"]
        assert ("retry-after" in failed.headers) is (shown == 503)
        assert newest_call(service)["status"] == "error"


@pytest.mark.parametrize("dialect", BODIES)
def test_what_is_refused_at_the_door_has_the_dialects_body_too(engine, tmp_path, dialect):
    sections: dict[str, Any] = {
        "auth": {"user_keys": ("user",)},
        "server": {"max_body_mib": 0.01},
    }
    with ServiceThread(tmp_path, engine.url, sections) as service:
        unknown = post(service, dialect, headers={"x-api-key": "no"})
        large = post(service, dialect, headers={"x-api-key": "user"}, metadata={"x": "x" * 20_000})
        assert post(service, dialect, headers={"x-api-key": "user"}).status_code == 200
    assert (unknown.status_code, large.status_code) == (401, 413)
    for refused in (unknown, large):
        assert error_of(dialect, refused.json())["message"]


@pytest.mark.parametrize("dialect", BODIES)
def test_what_fails_in_mid_stream_is_told_in_the_dialect_and_never_as_an_end(
    service, engine, dialect
):
    """P-23."""
    engine.control(error_after_chunks=3)
    text = post(service, dialect, stream=True).text
    last = read_events(text)[-1]
    failed = last["response"]["error"] if dialect == "responses" else error_of(dialect, last)
    assert "ordered by the test" in failed["message"]
    ends = ("[DONE]", "message_stop", "response.completed", '"stop"', "end_turn")
    assert not [end for end in ends if end in text]
    call = newest_call(service)
    assert (call["status"], call["finish_reason"]) == ("error", None)
    assert call["completion_token_ids"]


@pytest.mark.parametrize("dialect", BODIES)
def test_a_client_that_leaves_cancels_the_engine_in_every_dialect(service, engine, dialect):
    """P-22."""
    engine.control(chunk_delay_s=0.05)
    body = BODIES[dialect] | {"stream": True}
    with service.http.stream("POST", f"/v1/{dialect}", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: engine.requests[-1].disconnected, 2)
    wait_until(lambda: bool(episode_of(service, response).get("calls")), 2)  # a 404 until then
    assert newest_call(service)["status"] == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
def test_tools_that_are_called_are_told_in_messages(service, engine, stream):
    engine.answer = lambda model, messages: TWO_CALLS
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("add", "mul")]
    response = post(service, "messages", tools=tools, stream=stream)
    [call] = episode_of(service, response)["calls"]
    assert [one["function"]["name"] for one in call["message"]["tool_calls"]] == ["add", "mul"]
    assert call["completion_token_ids"] == [*engine.tokenize(TWO_CALLS), 2]
    if stream:
        events = read_events(response.text)
        blocks = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"
    else:
        blocks = response.json()["content"]
        assert [block.get("input") for block in blocks] == [None, {"x": 1}, {}]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use"]


@pytest.mark.parametrize("path", ["/v1", "/s/job/v1"])
def test_tokens_are_counted_as_the_engine_would_see_them(service, engine, path):
    body = {"model": "denizen", "messages": SAID, "system": "Be brief."}
    response = service.http.post(f"{path}/messages/count_tokens", json=body)
    seen = [{"role": "system", "content": "Be brief."}, *SAID]
    assert response.json() == {"input_tokens": len(engine.prompt_ids(seen))}
    assert engine.requests[-1].body["model"] == "base"
    answer = service.http.post("/v1/messages", json=body | {"max_tokens": 5}).json()
    assert answer["usage"]["input_tokens"] == response.json()["input_tokens"]


def test_tokens_of_an_unknown_model_are_not_counted(service):
    body = {"model": "gpt-5", "messages": SAID}
    response = service.http.post("/v1/messages/count_tokens", json=body)
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_n_completions_is_a_call_of_its_own(service, engine, stream):
    response = post(service, "completions", prompt=[1, 9, 8], n=2, stream=stream)
    first, second = episode_of(service, response)["calls"]
    assert second["id"] == f"{first['id']}.1"
    assert first["prompt_token_ids"] == second["prompt_token_ids"] == [1, 9, 8]
    for call in (first, second):
        text = call["message"]["content"]
        assert call["completion_token_ids"] == [*engine.tokenize(text), 2]
        assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"])


def test_a_completion_shows_the_logprobs_that_were_asked_for(service):
    [choice] = post(service, "completions", logprobs=1, return_token_ids=True).json()["choices"]
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"]) > 0


def test_the_openai_client_completes_streamed_and_not(service):
    with openai.OpenAI(base_url=f"{service.http.base_url}/v1", api_key="none") as client:
        plain = client.completions.create(model="denizen", prompt="hi")
        chunks = client.completions.create(model="denizen", prompt="hi", stream=True)
        assert plain.choices[0].text == "".join(chunk.choices[0].text for chunk in chunks)


def test_the_openai_client_raises_when_a_streamed_response_breaks_off(service, engine):
    engine.control(cut_after_chunks=3)
    url = f"{service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = client.responses.create(model="denizen", input="hi", stream=True)
        with pytest.raises(openai.APIError, match="broke off"):
            list(stream)


def dropped(service: ServiceThread, reason: str) -> float:
    name = f'denizen_records_text_only_total{{reason="{reason}"}}'
    lines = service.http.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize("dialect", CONVERSATIONS)
def test_an_answer_without_token_ids_is_recorded_as_text_and_counted(service, engine, dialect):
    spoken = {"index": 0, "delta": {"content": "12"}, "finish_reason": "stop"}
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [spoken]}
    engine.control(raw_chunks=[f"data: {json.dumps(chunk)}\n\n", "data: [DONE]\n\n"])
    before = dropped(service, "no_token_ids")
    response = post(service, dialect, stream=True)
    assert streamed_text(dialect, response.text) == "12"
    [call] = episode_of(service, response)["calls"]
    assert call["message"]["content"] == "12"
    assert (call["prompt_token_ids"], call["completion_token_ids"]) == (None, None)
    assert (call["status"], call["not_learnable_reason"]) == ("ok", "no_token_ids")
    assert dropped(service, "no_token_ids") == before + 1


def test_exact_answers_are_not_counted_as_text_only(service):
    before = dropped(service, "no_token_ids"), dropped(service, "no_logprobs")
    service.http.post("/v1/chat/completions", json=ask("hi"))
    assert (dropped(service, "no_token_ids"), dropped(service, "no_logprobs")) == before


CODEX: dict[str, Any] = {
    "model": "denizen",
    "instructions": "You are a coding agent.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions>none</permissions>"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "List the files."}],
        },
    ],
    "tools": [
        {"type": "function", "name": "shell", "strict": False, "parameters": {"type": "object"}},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}},
        {"type": "web_search", "external_web_access": False},
        {"type": "local_shell"},
        {"type": "tool_of_tomorrow", "anything": {"at": ["all"]}},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019",
    "text": {"verbosity": "medium"},
    "client_metadata": {"x-codex-installation-id": "1"},
}


def test_a_request_in_the_form_of_codex_is_answered(service, engine):
    """P-24."""
    engine.answer = lambda model, messages: (
        '<tool_call>{"name": "shell", "arguments": {"command": ["ls"]}}</tool_call>'
    )
    response = service.http.post("/v1/responses", json=CODEX)
    assert response.status_code == 200
    final = read_events(response.text)[-1]
    assert final["type"] == "response.completed"
    [item] = final["response"]["output"]
    assert (item["name"], item["arguments"]) == ("shell", '{"command": ["ls"]}')
    assert [tool["function"]["name"] for tool in engine.requests[-1].body["tools"]] == ["shell"]
    assert episode_of(service, response)["task_text"] == "List the files."
