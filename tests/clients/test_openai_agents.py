"""``openai-agents`` over the service: an agent with tools, and one that hands over to another."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    Model,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    function_tool,
)

from tests.clients.recorded import assert_exact, called, episodes, only_episode, say, tool_call

LOCAL_ONLY = RunConfig(tracing_disabled=True)  # it sends its traces home otherwise
ADD = tool_call("add", '{"a": 1, "b": 2}')


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: openai.AsyncOpenAI) -> Model:
    return OpenAIChatCompletionsModel("denizen", client)


def agent(model: Model, **fields: Any) -> Agent[Any]:
    return Agent(name="Adder", instructions="You add.", model=model, tools=[add], **fields)


async def test_a_run_with_a_tool_is_one_exact_episode(service, engine, model):
    say(engine, ADD, "It is 3.")
    run = await Runner.run(agent(model), "1 + 2?", run_config=LOCAL_ONLY)
    assert run.final_output == "It is 3."
    assert engine.requests[-1].body["messages"][-1]["content"] == "3"
    calls = only_episode(service)["calls"]
    assert_exact(calls, 2)
    assert called(calls[0]) == [("add", '{"a": 1, "b": 2}')]


async def test_a_streamed_run_with_a_tool_is_the_same(service, engine, model):
    say(engine, ADD, "It is 3.")
    run = Runner.run_streamed(agent(model), "1 + 2?", run_config=LOCAL_ONLY)
    kinds = [event.type async for event in run.stream_events()]
    assert "raw_response_event" in kinds
    assert run.final_output == "It is 3."
    assert_exact(only_episode(service)["calls"], 2)


async def test_a_conversation_goes_on_where_it_stopped(service, engine, model):
    say(engine, ADD, "It is 3.", "You are welcome.")
    first = await Runner.run(agent(model), "1 + 2?", run_config=LOCAL_ONLY)
    history = [*first.to_input_list(), {"role": "user", "content": "Thanks!"}]
    second = await Runner.run(agent(model), history, run_config=LOCAL_ONLY)
    assert second.final_output == "You are welcome."
    calls = only_episode(service)["calls"]
    assert_exact(calls, 3)


async def test_an_agent_that_is_handed_the_conversation_answers(service, engine, model):
    french = Agent(name="French", instructions="You speak French.", model=model)
    english = Agent(
        name="English", instructions="You speak English.", model=model, handoffs=[french]
    )

    def answer(_: str, messages: Any) -> str:
        is_french = "French" in messages[0]["content"]
        return "Bonjour." if is_french else tool_call("transfer_to_french", "{}")

    engine.answer = answer
    run = await Runner.run(english, "Bonjour ?", run_config=LOCAL_ONLY)
    assert (run.final_output, run.last_agent.name) == ("Bonjour.", "French")
    calls = [call for one in episodes(service) for call in one["calls"]]
    assert [call["learnable"] for call in calls] == [True, True]
