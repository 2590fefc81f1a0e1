"""The ``anthropic`` package over the service's Messages dialect: nothing but its base URL set."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest

from tests.clients.recorded import assert_exact, called, only_episode, say, tool_call
from tests.running import ServiceThread

HELLO: list[Any] = [{"role": "user", "content": "1 + 2?"}]
ADD: Any = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    },
}
CALLS = tool_call("add", '{"a": 1, "b": 2}') + tool_call("add", '{"a": 3, "b": 4}')
INPUTS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.fixture
def client(service: ServiceThread) -> Iterator[anthropic.Anthropic]:
    url = str(service.http.base_url)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(service: ServiceThread) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = str(service.http.base_url)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def ask(messages: list[Any], **fields: Any) -> dict[str, Any]:
    return {"model": "denizen", "max_tokens": 100, "messages": messages, **fields}


def inputs(message: Any) -> list[Any]:
    return [block.input for block in message.content if block.type == "tool_use"]


def answered(message: Any) -> list[Any]:
    """Return the history after a message whose tools have run."""
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": str(sum(block.input.values()))}
        for block in message.content
        if block.type == "tool_use"
    ]
    said = {"role": "assistant", "content": message.content}
    return [*HELLO, said, {"role": "user", "content": results}]


def test_a_plain_and_a_streamed_answer_say_the_same(service, client):
    plain = client.messages.create(**ask(HELLO, system="Be brief."))
    with client.messages.stream(**ask(HELLO, system="Be brief.")) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert plain.content[0].text == text == last.content[0].text
    assert plain.stop_reason == last.stop_reason == "end_turn"
    assert plain.usage.output_tokens == last.usage.output_tokens > 0


def test_a_conversation_is_one_exact_episode(service, client):
    messages = list(HELLO)
    for turn in ("and then?", "at last?", ""):
        said = client.messages.create(**ask(messages))
        messages += [{"role": "assistant", "content": said.content}]
        messages += [{"role": "user", "content": turn}]
    calls = only_episode(service)["calls"]
    assert_exact(calls, 3)


def test_tools_are_called_answered_and_the_answer_continues(service, engine, client):
    say(engine, CALLS, "3 and 7.")
    first = client.messages.create(**ask(HELLO, tools=[ADD]))
    assert first.stop_reason == "tool_use"
    assert inputs(first) == INPUTS
    second = client.messages.create(**ask(answered(first), tools=[ADD]))
    assert second.content[0].text == "3 and 7."
    results = [one["content"] for one in engine.requests[-1].body["messages"][-2:]]
    assert results == ["3", "7"]
    calls = only_episode(service)["calls"]
    assert_exact(calls, 2)
    assert [name for name, _ in called(calls[0])] == ["add", "add"]


async def test_streamed_tools_are_assembled_by_the_asynchronous_client(
    service, engine, async_client
):
    say(engine, f"Well. {CALLS}", "3 and 7.")
    async with async_client.messages.stream(**ask(HELLO, tools=[ADD])) as stream:
        kinds = [event.type async for event in stream]
        first = await stream.get_final_message()
    assert {"message_start", "content_block_start", "input_json", "message_stop"} <= set(kinds)
    assert (first.stop_reason, inputs(first)) == ("tool_use", INPUTS)
    assert first.content[0].text.strip() == "Well."
    second = await async_client.messages.create(**ask(answered(first), tools=[ADD]))
    assert second.content[0].text == "3 and 7."
    assert_exact(only_episode(service)["calls"], 2)


def test_the_token_limit_is_told_as_the_reason(client):
    said = client.messages.create(**ask(HELLO) | {"max_tokens": 2})
    assert (said.stop_reason, said.usage.output_tokens) == ("max_tokens", 2)


def test_headers_name_the_record(service, client):
    raw = client.messages.with_raw_response.create(**ask(HELLO))
    assert raw.headers["x-denizen-episode-id"] == only_episode(service)["id"]
    assert raw.parse().model == "denizen"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": "claude-9"}, anthropic.NotFoundError),
        ({"max_tokens": -1}, anthropic.BadRequestError),
        ({"extra_body": {"no_such_thing": 1}}, anthropic.BadRequestError),
    ],
)
def test_what_cannot_be_served_is_the_clients_own_error(client, fields, kind):
    with pytest.raises(kind) as caught:
        client.messages.create(**ask(HELLO) | fields)
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["message"]


def test_an_error_in_mid_stream_is_raised(service, engine, client):
    engine.control(error_after_chunks=3)
    with pytest.raises(anthropic.APIError), client.messages.stream(**ask(HELLO)) as stream:
        list(stream.text_stream)
    [call] = only_episode(service)["calls"]
    assert call["status"] == "error"
