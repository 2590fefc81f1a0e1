"""The ``openai`` package, plain and asynchronous, over the service, given only its base URL."""

import json
from typing import Any

import openai
import pydantic
import pytest

from tests.clients.recorded import assert_exact, called, only_episode, say, texts, tool_call

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
ADD: Any = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
TWO_CALLS = tool_call("add", '{"a": 1, "b": 2}') + tool_call("add", '{"a": 3, "b": 4}')


def test_a_conversation_of_three_turns_is_one_exact_episode(service, client):
    messages = list(HELLO)
    for turn in ("and then?", "at last?", ""):
        answer = client.chat.completions.create(model="denizen", messages=messages)
        messages += [answer.choices[0].message, {"role": "user", "content": turn}]
    calls = only_episode(service)["calls"]
    assert_exact(calls, 3)


def test_a_streamed_conversation_is_the_same(service, client):
    messages = list(HELLO)
    for turn in ("and then?", ""):
        with client.chat.completions.stream(model="denizen", messages=messages) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
        said = stream.get_final_completion().choices[0].message
        assert "".join(deltas) == said.content
        messages += [
            {"role": "assistant", "content": said.content},
            {"role": "user", "content": turn},
        ]
    assert_exact(only_episode(service)["calls"], 2)


async def test_the_asynchronous_client_chats_streamed_and_not(service, async_client):
    plain = await async_client.chat.completions.create(model="denizen", messages=HELLO)
    stream = await async_client.chat.completions.create(
        model="denizen", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage.total_tokens == plain.usage.total_tokens


def test_tools_are_called_answered_and_the_answer_continues(service, engine, client):
    say(engine, TWO_CALLS, "3 and 7.")
    messages = list(HELLO)
    first = client.chat.completions.create(model="denizen", messages=messages, tools=[ADD])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    messages.append(message)
    for call in message.tool_calls:
        numbers = json.loads(call.function.arguments)
        result = {"role": "tool", "tool_call_id": call.id, "content": str(sum(numbers.values()))}
        messages.append(result)
    second = client.chat.completions.create(model="denizen", messages=messages, tools=[ADD])
    assert second.choices[0].message.content == "3 and 7."
    results = [one["content"] for one in engine.requests[-1].body["messages"][-2:]]
    assert results == ["3", "7"]
    calls = only_episode(service)["calls"]
    assert_exact(calls, 2)
    assert called(calls[0]) == [("add", '{"a": 1, "b": 2}'), ("add", '{"a": 3, "b": 4}')]


async def test_streamed_tools_are_assembled_by_the_asynchronous_client(
    service, engine, async_client
):
    say(engine, f"Well. {TWO_CALLS}", "3 and 7.")
    async with async_client.chat.completions.stream(
        model="denizen", messages=HELLO, tools=[ADD | {"function": ADD["function"]}]
    ) as stream:
        done = [
            event async for event in stream if event.type == "tool_calls.function.arguments.done"
        ]
        message = (await stream.get_final_completion()).choices[0].message
    assert [event.arguments for event in done] == ['{"a": 1, "b": 2}', '{"a": 3, "b": 4}']
    assert message.content == "Well. "
    history = [*HELLO, message.model_dump(exclude_none=True)]
    history += [
        {"role": "tool", "tool_call_id": call.id, "content": "3"} for call in message.tool_calls
    ]
    await async_client.chat.completions.create(model="denizen", messages=history, tools=[ADD])
    calls = only_episode(service)["calls"]
    assert_exact(calls, 2)
    assert texts(calls) == ["Well. ", "3 and 7."]


def test_an_answer_is_parsed_into_the_callers_own_model(engine, client):
    class Sum(pydantic.BaseModel):
        total: int

    say(engine, '{"total": 3}')
    answer = client.chat.completions.parse(model="denizen", messages=HELLO, response_format=Sum)
    assert answer.choices[0].message.parsed == Sum(total=3)
    asked = engine.requests[-1].body["response_format"]["json_schema"]
    assert asked["schema"]["required"] == ["total"]


def test_choices_log_probabilities_and_headers_are_there_for_who_asks(client):
    raw = client.chat.completions.with_raw_response.create(
        model="denizen", messages=HELLO, n=2, logprobs=True
    )
    answer = raw.parse()
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.logprobs.content for choice in answer.choices)
    assert raw.headers["x-denizen-call-id"] == answer.id
    assert answer.model == "denizen"


def test_the_models_are_listed(client):
    assert {model.id for model in client.models.list()} == {"denizen", "denizen@base"}


def test_a_session_in_the_base_url_names_the_episode(service):
    url = f"{service.http.base_url}/s/job-7/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for text in ("one thing", "another"):
            client.chat.completions.create(
                model="denizen", messages=[{"role": "user", "content": text}]
            )
    assert only_episode(service)["session"] == "job-7"


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "gpt-9"}, openai.NotFoundError, "model"),
        ({"temperature": 9}, openai.BadRequestError, "temperature"),
        ({"extra_body": {"no_such_thing": 1}}, openai.BadRequestError, "no_such_thing"),
        ({"modalities": ["audio"]}, openai.BadRequestError, "modalities"),
    ],
)
def test_what_cannot_be_served_is_the_clients_own_error_with_the_parameter(
    client, fields, kind, param
):
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "denizen", "messages": HELLO} | fields)
    assert caught.value.param == param


def test_an_engine_that_is_down_for_a_moment_is_waited_for(engine, url):
    engine.control(http_error=503)
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="denizen", messages=HELLO)
        assert int(caught.value.response.headers["retry-after"]) > 0
        engine.reset()
        assert client.chat.completions.create(model="denizen", messages=HELLO).choices
