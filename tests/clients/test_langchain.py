"""``langchain-openai`` over the service: nothing but its base URL set."""

from collections.abc import AsyncIterator
from typing import Any

import pydantic
import pytest
from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.clients.recorded import assert_exact, called, only_episode, say, texts, tool_call

THREE_CALLS = "".join(tool_call("add", f'{{"a": {n}, "b": 1}}') for n in (1, 2, 3))


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
async def model(url: str) -> AsyncIterator[ChatOpenAI]:
    model = ChatOpenAI(model="denizen", base_url=url, api_key="none", max_retries=0)
    yield model
    model.root_client.close()
    await model.root_async_client.close()


def results(calls: list[Any]) -> list[ToolMessage]:
    return [add.invoke(call) for call in calls]


def test_it_chats_and_counts_tokens(service, model):
    said = model.invoke("Hello")
    [call] = only_episode(service)["calls"]
    assert said.content == call["message"]["content"]
    assert said.usage_metadata["output_tokens"] == len(call["completion_token_ids"])
    assert said.response_metadata["finish_reason"] == "stop"


async def test_it_streams_in_pieces_that_add_up(service, model):
    chunks = [chunk async for chunk in model.astream("Hello")]
    assert len(chunks) > 3
    [call] = only_episode(service)["calls"]
    assert "".join(chunk.text for chunk in chunks) == call["message"]["content"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_three_tools_at_once_are_called_and_answered(service, engine, model, is_streamed):
    """P-16: the calls are told apart, in their order."""
    say(engine, THREE_CALLS, "2, 3 and 4.")
    with_tools = model.bind_tools([add])
    history: list[Any] = [HumanMessage("1 + 1, 2 + 1, 3 + 1?")]
    first = with_tools.invoke(history) if not is_streamed else streamed(with_tools, history)
    assert [call["args"] for call in first.tool_calls] == [{"a": n, "b": 1} for n in (1, 2, 3)]
    assert len({call["id"] for call in first.tool_calls}) == 3
    last = with_tools.invoke([*history, first, *results(first.tool_calls)])
    assert last.content == "2, 3 and 4."
    calls = only_episode(service)["calls"]
    assert_exact(calls, 2)
    assert [name for name, _ in called(calls[0])] == ["add"] * 3
    assert texts(calls)[1] == "2, 3 and 4."


def streamed(runnable: Any, history: list[Any]) -> AIMessageChunk:
    chunks = list(runnable.stream(history))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert isinstance(whole, AIMessageChunk)
    return whole


def test_an_answer_is_read_into_the_callers_own_model(engine, model):
    class Sum(pydantic.BaseModel):
        total: int

    say(engine, '{"total": 3}')
    answer = model.with_structured_output(Sum, method="json_schema").invoke("1 + 2?")
    assert answer == Sum(total=3)
    assert engine.requests[-1].body["response_format"]["type"] == "json_schema"


def test_many_at_once_are_each_answered(service, model):
    answers = model.batch([f"number {n}" for n in range(8)], config={"max_concurrency": 8})
    assert all(f"number {n}" in answer.content for n, answer in enumerate(answers))
    assert service.http.get("/v1/status").json()["counts"]["episodes"] == 8
