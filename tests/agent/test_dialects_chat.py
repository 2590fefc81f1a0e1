import copy
from typing import Any

import pytest

from agent.dialects.chat import Chat
from memory.errors import InvalidRequestError
from tests.agent.told import (
    USAGE,
    body_of,
    choice,
    chunks,
    events_of,
    new_reply,
    nothing_recorded,
    whole,
)

ASKED: dict[str, Any] = {"model": "denizen", "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
EXACT = {"return_token_ids": True, "logprobs": True}


def read(**fields: Any) -> Any:
    return Chat().read(ASKED | fields, nothing_recorded)


def test_the_engine_is_asked_what_the_client_asks_and_for_ids():
    ask = read(temperature=0.5, tools=[TOOL], chat_template_kwargs={"x": 1})
    assert ask.body == ASKED | EXACT | {
        "temperature": 0.5,
        "tools": [TOOL],
        "chat_template_kwargs": {"x": 1},
    }


def test_what_has_no_effect_here_is_accepted_and_stays_here():
    habits = {
        "store": True,
        "metadata": {"task": "sums", "own": "key"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
    }
    ask = read(**habits)
    assert ask.body == ASKED | EXACT
    assert ask.metadata.task == "sums"
    assert "metadata" not in ask.record


@pytest.mark.parametrize("name", ["stream", "n", "tools", "max_tokens", "stop", "user", "logprobs"])
def test_null_is_as_good_as_nothing(name):
    assert read(**{name: None}).stream is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {}}, "audio"),
        ({"functions": []}, "functions"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"n": 17}, "n"),
        ({"tools": [TOOL] * 257}, "tools"),
        ({"messages": [ASKED["messages"][0]] * 2_049}, "messages"),
        ({"messages": [{"role": "banana", "content": "x"}]}, "messages.0.role"),
        ({"response_format": SCHEMA, "tools": [TOOL]}, "response_format"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


def test_a_long_stop_text_is_one_stop():
    assert read(stop="x" * 100).body["stop"] == "x" * 100


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": [TOOL], "tool_choice": "none"}, {}])
def test_a_form_of_the_answer_without_tools_to_call_is_passed_on(fields):
    assert read(response_format=SCHEMA, **fields).body["response_format"] == SCHEMA


def test_a_text_format_excludes_no_tools():
    assert read(response_format={"type": "text"}, tools=[TOOL]).body["tools"] == [TOOL]


def test_what_the_client_sees_hides_names_ids_and_logprobs_it_did_not_ask_for():
    entries = {"content": [{"token": "12", "logprob": -0.5}]}
    answer = whole({"content": "12"}, token_ids=[33], logprobs=entries)
    seen = body_of(Chat(), ASKED, copy.deepcopy(answer))
    assert (seen["model"], seen["prompt_token_ids"]) == ("denizen", None)
    assert (seen["choices"][0]["token_ids"], seen["choices"][0]["logprobs"]) == (None, None)
    asked = body_of(Chat(), ASKED | EXACT, copy.deepcopy(answer))
    assert asked == answer | {"model": "denizen"}


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None}])
def test_a_chunk_that_exists_only_for_the_record_is_not_shown(delta):
    stream = [choice("delta", delta, None, token_ids=[33]), choice("delta", delta, "stop")]
    assert len(events_of(Chat(), ASKED, copy.deepcopy(stream))) == 1
    assert len(events_of(Chat(), ASKED | EXACT, copy.deepcopy(stream))) == 2


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_usage_is_told_once_and_last_wherever_the_engine_tells_it(place):
    *spoken, usage = chunks({"content": "one"}, {"content": "two"})
    spoken.insert(place, usage)
    spoken.insert(1, {"id": "chatcmpl-1", "choices": []})
    asked = ASKED | {"stream": True, "stream_options": {"include_usage": True}}
    events = events_of(Chat(), asked, copy.deepcopy(spoken))
    assert [event["choices"] == [] for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["usage"] == USAGE
    silent = events_of(Chat(), ASKED | {"stream": True}, copy.deepcopy(spoken))
    assert silent == events[:-1]


def test_a_stream_that_broke_off_ends_with_the_error_and_no_done():
    reply, _ = new_reply(Chat(), ASKED)
    [event] = reply.failure(InvalidRequestError("broke"))
    assert event.startswith(b'data: {"error":{"message":"broke"')
    assert list(reply.end()) == [b"data: [DONE]\n\n"]
