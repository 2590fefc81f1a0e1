from typing import Any

import pytest

from agent.dialects.responses import Responses
from memory.errors import InvalidRequestError
from memory.types import CallStatus
from tests import records
from tests.agent.told import body_of, chunks, events_of, new_reply, nothing_recorded, whole

ASKED: dict[str, Any] = {"model": "denizen", "input": "hi"}
ADD: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object"}}
CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
    {"id": "call_b", "type": "function", "function": {"name": "mul", "arguments": "{}"}},
]


def read(**fields: Any) -> Any:
    return Responses().read(ASKED | fields, nothing_recorded)


def items_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the output without the items' own ids."""
    return [{k: v for k, v in item.items() if k != "id"} for item in response["output"]]


def text_item(text: str, status: str = "completed") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "role": "assistant", "content": [part], "status": status}


def test_a_request_is_one_chat_completion():
    ask = read(
        instructions="Be brief.",
        max_output_tokens=8,
        temperature=0.5,
        top_p=0.9,
        stream=True,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "text"}},
    )
    assert ask.path == "/v1/chat/completions"
    assert ask.body == {
        "model": "denizen",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ],
        "max_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "logprobs": True,
    }


def test_the_record_is_the_chat_completion_and_what_it_was_made_of():
    ask = read(instructions="Be brief.", store=False)
    assert ask.record == {
        "dialect": "responses",
        "model": "denizen",
        "instructions": "Be brief.",
        "messages": ask.messages,
    }


def test_items_of_one_answer_are_one_message_again():
    """Else the next prompt would not extend the tokens of the answer."""
    ask = read(
        input=[
            {"role": "developer", "content": "Add."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}],
            },
            {"type": "message", "role": "assistant", "content": text_item("Well.")["content"]},
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "mul", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "3"},
            {
                "type": "function_call_output",
                "call_id": "b",
                "output": [{"type": "input_text", "text": "4"}],
            },
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "x"},
            {"role": "assistant", "content": "3 and 4."},
        ]
    )
    functions = [
        {"id": name, "type": "function", "function": {"name": call, "arguments": "{}"}}
        for name, call in (("a", "add"), ("b", "mul"))
    ]
    assert ask.messages == [
        {"role": "developer", "content": "Add."},
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "Well.", "reasoning": "hm", "tool_calls": functions},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "tool", "tool_call_id": "b", "content": "4"},
        {"role": "assistant", "content": "3 and 4."},
    ]
    assert ask.body["messages"][0]["role"] == "system"


def test_answers_that_were_two_stay_two():
    said = [{"role": "assistant", "content": text} for text in ("one", "two")]
    assert read(input=said).messages == said


def test_instructions_and_developer_messages_reach_the_engine_as_one_system_message():
    """Many chat templates refuse a second one."""
    ask = read(
        instructions="Be brief.",
        input=[{"role": "developer", "content": "In French."}, {"role": "user", "content": "hi"}],
    )
    assert [one["content"] for one in ask.body["messages"]] == ["Be brief.\n\nIn French.", "hi"]
    assert [one["role"] for one in ask.messages] == ["system", "developer", "user"]


def test_an_image_stays_a_part_beside_the_text():
    content = [
        {"type": "input_text", "text": "what?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA"},
    ]
    [message] = read(input=[{"role": "user", "content": content}]).messages
    assert message["content"] == [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
    ]


def test_functions_are_offered_and_tools_of_other_types_are_not():
    """P-24."""
    others = [{"type": "web_search"}, {"type": "custom", "name": "apply_patch"}, {"type": "mcp"}]
    body = read(tools=[*others, ADD | {"strict": False}], tool_choice="required").body
    function = {"name": "add", "parameters": {"type": "object"}, "strict": False}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == "required"
    named = read(tools=[ADD], tool_choice={"type": "function", "name": "add"}).body
    assert named["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert (
        not {"tools", "tool_choice", "parallel_tool_calls"}
        & read(tools=others, tool_choice="auto", parallel_tool_calls=True).body.keys()
    )


def test_a_schema_of_the_text_is_the_chats_response_format():
    form = {"type": "json_schema", "name": "sum", "schema": {"type": "object"}, "strict": True}
    assert read(text={"format": form}).body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "sum", "schema": {"type": "object"}, "strict": True},
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 5}, "max_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "banana", "content": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0"),
        ({"tools": [ADD] * 257}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [ADD], "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


def test_a_response_goes_on_from_the_recorded_one_without_its_instructions():
    system = {"role": "system", "content": "Be brief."}
    asked = {"messages": [system, {"role": "user", "content": "1"}], "instructions": "Be brief."}
    said = {"role": "assistant", "content": "one", "reasoning": "hm"}
    before = records.call(request=asked, message=said)
    body = ASKED | {"previous_response_id": before.id, "instructions": "Be long."}
    ask = Responses().read(body, lambda _: before)
    assert ask.continues == before
    assert ask.messages == [
        {"role": "system", "content": "Be long."},
        {"role": "user", "content": "1"},
        said,
        {"role": "user", "content": "hi"},
    ]


@pytest.mark.parametrize(
    "fields",
    [{"status": CallStatus.CANCELLED}, {"message": None}, {"request": {"prompt": "x"}}],
)
def test_what_is_no_complete_answer_cannot_be_continued(fields):
    asked = {"messages": [{"role": "user", "content": "1"}]}
    before = records.call(**{"request": asked, **fields})
    with pytest.raises(InvalidRequestError, match="cannot be continued") as caught:
        Responses().read(ASKED | {"previous_response_id": before.id}, lambda _: before)
    assert caught.value.param == "previous_response_id"


def test_a_whole_answer_is_a_response_with_its_items_and_usage():
    message = {"content": "Well.", "reasoning": "hm", "tool_calls": CALLS}
    answer = whole(message, "tool_calls")
    response = body_of(Responses(), ASKED | {"tools": [ADD], "metadata": {"a": "b"}}, answer)
    thought = [{"type": "reasoning_text", "text": "hm"}]
    call = {"type": "function_call", "status": "completed"}
    assert items_of(response) == [
        {"type": "reasoning", "summary": [], "content": thought},
        text_item("Well."),
        call | {"call_id": "call_a", "name": "add", "arguments": '{"x": 1}'},
        call | {"call_id": "call_b", "name": "mul", "arguments": "{}"},
    ]
    assert response["id"] == "chatcmpl-1"
    assert (response["object"], response["status"]) == ("response", "completed")
    assert (response["error"], response["incomplete_details"]) == (None, None)
    assert (response["model"], response["metadata"]) == ("denizen", {"a": "b"})
    assert response["tools"] == [ADD]
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 5,
    }
    assert len({item["id"] for item in response["output"]}) == 4


def test_an_answer_that_was_cut_is_incomplete():
    response = body_of(Responses(), ASKED, whole({"content": "We"}, "length"))
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert items_of(response) == [text_item("We", "incomplete")]
    last = events_of(Responses(), ASKED, chunks({"content": "We"}, finish="length"))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def fragment(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": index, "id": call_id, "function": function}]}


DELTAS: list[dict[str, Any]] = [
    {"reasoning": "h"},
    {"reasoning_content": "m"},
    {"content": "We"},
    {"content": "ll."},
    fragment(0, "call_a", "add", ""),
    fragment(0, None, None, '{"x"'),
    fragment(1, "call_b", "mul", ""),
    fragment(1, None, None, "{}"),
    fragment(0, None, None, ": 1}"),
]


def test_a_stream_grows_to_what_the_whole_answer_is():
    """P-16, P-17: also where calls interleave."""
    message = {"content": "Well.", "reasoning": "hm", "tool_calls": CALLS}
    response = body_of(Responses(), ASKED, whole(message, "tool_calls"))
    events = events_of(Responses(), ASKED, chunks(*DELTAS, finish="tool_calls"))
    final = events[-1]["response"]
    assert {**final, "created_at": 0} == {**response, "created_at": 0}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_the_events_of_a_stream_come_in_order():
    events = events_of(Responses(), ASKED, chunks(*DELTAS, finish="tool_calls"))
    told = [(one["type"].removeprefix("response."), one.get("output_index")) for one in events]
    assert told == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.delta", 0),
        ("reasoning_text.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("content_part.added", 1),
        ("output_text.delta", 1),
        ("output_text.delta", 1),
        ("output_text.done", 1),
        ("content_part.done", 1),
        ("output_item.done", 1),
        ("output_item.added", 2),
        ("function_call_arguments.delta", 2),
        ("output_item.added", 3),
        ("function_call_arguments.delta", 3),
        ("function_call_arguments.delta", 2),
        ("function_call_arguments.done", 2),
        ("output_item.done", 2),
        ("function_call_arguments.done", 3),
        ("output_item.done", 3),
        ("completed", None),
    ]
    assert events[0]["response"]["output"] == []
    assert events[2]["item"]["content"] == []
    assert events[-5]["arguments"] == '{"x": 1}'


def test_a_stream_that_broke_off_says_so_twice_and_never_completed():
    reply, capture = new_reply(Responses(), ASKED)
    first, second, *_ = chunks({"content": "We"})
    for chunk in (first, second):
        capture.absorb(chunk)
        list(reply.events(chunk))
    told = list(reply.failure(InvalidRequestError("broke")))
    assert [one.split(b"\n")[0] for one in told] == [b"event: error", b"event: response.failed"]
    assert b'"error":{"code":"server_error","message":"broke"}' in told[1]
    assert b'"status":"completed"' not in told[1]
