"""``/v1/responses`` by the packages that speak it: ``openai``, and ``openai-agents``' own model."""

from typing import Any

import openai
import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool

from tests.clients.recorded import assert_exact, called, only_episode, say, tool_call

ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
CALLS = tool_call("add", '{"a": 1}') + tool_call("add", '{"a": 2}')
LOCAL_ONLY = RunConfig(tracing_disabled=True)


@function_tool
def add(a: int) -> int:
    """Add one to a number."""
    return a + 1


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": f"result {place}"}
        for place, item in enumerate(calls_of(response))
    ]


def test_a_plain_and_a_streamed_answer_say_the_same(client):
    plain = client.responses.create(model="denizen", input="Hello", instructions="Be brief.")
    with client.responses.stream(
        model="denizen", input="Hello", instructions="Be brief."
    ) as stream:
        deltas = [one.delta for one in stream if one.type == "response.output_text.delta"]
        last = stream.get_final_response()
    assert plain.output_text == "".join(deltas) == last.output_text != ""
    assert (plain.status, last.status) == ("completed", "completed")
    assert plain.usage.output_tokens == last.usage.output_tokens > 0


def test_a_conversation_by_the_id_of_the_one_before_is_one_exact_episode(service, client):
    first = client.responses.create(model="denizen", input="Hello")
    second = client.responses.create(
        model="denizen", input="and then?", previous_response_id=first.id
    )
    client.responses.create(model="denizen", input="at last?", previous_response_id=second.id)
    calls = only_episode(service)["calls"]
    assert_exact(calls, 3)


def test_tools_are_called_answered_and_the_answer_continues(service, engine, client):
    say(engine, CALLS, "2 and 3.")
    history: list[Any] = [{"role": "user", "content": "1 + 1, 2 + 1?"}]
    first = client.responses.create(model="denizen", input=history, tools=[ADD])
    assert [item.arguments for item in calls_of(first)] == ['{"a": 1}', '{"a": 2}']
    history += [item.model_dump(exclude_none=True) for item in first.output] + outputs(first)
    second = client.responses.create(model="denizen", input=history, tools=[ADD])
    assert second.output_text == "2 and 3."
    sent = [one["content"] for one in engine.requests[-1].body["messages"][-2:]]
    assert sent == ["result 0", "result 1"]
    calls = only_episode(service)["calls"]
    assert_exact(calls, 2)
    assert [name for name, _ in called(calls[0])] == ["add", "add"]


def test_streamed_tools_are_assembled(engine, client):
    say(engine, f"Well. {CALLS}")
    with client.responses.stream(model="denizen", input="1 + 1?", tools=[ADD]) as stream:
        done = [one for one in stream if one.type == "response.function_call_arguments.done"]
        last = stream.get_final_response()
    assert [event.arguments for event in done] == ['{"a": 1}', '{"a": 2}']
    assert [item.arguments for item in calls_of(last)] == ['{"a": 1}', '{"a": 2}']
    assert last.output_text.strip() == "Well."


def test_an_unknown_response_to_go_on_from_is_a_controlled_error(client):
    """P-24."""
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.create(model="denizen", input="x", previous_response_id="resp_unknown")
    assert caught.value.status_code in {400, 404}
    assert caught.value.param == "previous_response_id"


def test_a_request_in_the_form_of_codex_is_answered(service, engine, client):
    """P-24: tools of kinds that nobody can run here do no harm to those that can be called."""
    say(engine, tool_call("shell", '{"command": ["ls"]}'))
    function = ADD | {"name": "shell"}
    answer = client.responses.create(
        model="denizen",
        instructions="You are a coding agent.",
        input=[
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
        tools=[function, {"type": "local_shell"}, {"type": "web_search"}],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="7f9c",
    )
    [item] = calls_of(answer)
    assert (item.name, item.arguments) == ("shell", '{"command": ["ls"]}')
    assert_exact(only_episode(service)["calls"], 1)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_agent_with_a_tool_runs_as_one_exact_episode(
    service, engine, async_client, is_streamed
):
    say(engine, CALLS, "2 and 3.")
    model = OpenAIResponsesModel("denizen", async_client)
    agent = Agent(name="Adder", instructions="You add.", model=model, tools=[add])
    if is_streamed:
        streamed = Runner.run_streamed(agent, "1 + 1, 2 + 1?", run_config=LOCAL_ONLY)
        assert [event.type async for event in streamed.stream_events()]
        output = streamed.final_output
    else:
        output = (await Runner.run(agent, "1 + 1, 2 + 1?", run_config=LOCAL_ONLY)).final_output
    assert output == "2 and 3."
    calls = only_episode(service)["calls"]
    assert_exact(calls, 2)
