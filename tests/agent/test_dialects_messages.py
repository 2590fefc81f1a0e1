from typing import Any

import pytest

from agent.dialects.messages import Messages
from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from memory.errors import InvalidRequestError, NotFoundError
from tests.agent.test_dialects_responses import CALLS, DELTAS
from tests.agent.told import body_of, chunks, events_of, new_reply, nothing_recorded, whole

ASKED: dict[str, Any] = {
    "model": "denizen",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "hi"}],
}
ADD: dict[str, Any] = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}
CHAT_ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


def read(**fields: Any) -> Any:
    return Messages().read(ASKED | fields, nothing_recorded)


def test_a_request_is_one_chat_completion():
    ask = read(
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stream=True,
        tools=[ADD, {"type": "web_search_20250305", "name": "web_search"}],
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"effort": "low"},
        metadata={"user_id": "ann", "task": "sums"},
        service_tier="auto",
    )
    assert ask.body == {
        "model": "denizen",
        "messages": [
            {"role": "system", "content": "Be brief.\nBe kind."},
            {"role": "user", "content": "hi"},
        ],
        "max_tokens": 8,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [CHAT_ADD],
        "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": True},
        "return_token_ids": True,
        "logprobs": True,
    }
    assert (ask.user, ask.metadata.task) == ("ann", "sums")
    assert ask.record["dialect"] == "messages"
    assert "return_token_ids" not in ask.record


@pytest.mark.parametrize(
    ("choice", "forwarded"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "add"},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_each_choice_of_tools_has_its_chat_form(choice, forwarded):
    body = read(tools=[ADD], tool_choice=choice).body
    names = ("tool_choice", "parallel_tool_calls")
    assert {name: body[name] for name in names if name in body} == forwarded


def test_a_history_with_tools_is_the_chats_history():
    ask = read(
        messages=[
            {"role": "user", "content": "1 + 2?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "Well."},
                    {"type": "tool_use", "id": "a", "name": "add", "input": {"x": "é"}},
                    {"type": "tool_use", "id": "b", "name": "add", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "3"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "b",
                        "is_error": True,
                        "content": [{"type": "text", "text": "4"}, {"type": "text", "text": "5"}],
                    },
                    {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
                ],
            },
        ]
    )
    calls = [
        {"id": name, "type": "function", "function": {"name": "add", "arguments": arguments}}
        for name, arguments in (("a", '{"x": "é"}'), ("b", "{}"))
    ]
    assert ask.messages == [
        {"role": "user", "content": "1 + 2?"},
        {"role": "assistant", "content": "Well.", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "3"},
        {"role": "tool", "tool_call_id": "b", "content": "4\n5"},
        {"role": "user", "content": "So?"},
    ]


def test_an_image_stays_a_part_beside_the_text():
    source = {"type": "base64", "media_type": "image/png", "data": "AA"}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]
    [message] = read(messages=[{"role": "user", "content": content}]).messages
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "text", "text": "what?"},
    ]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0"),
        ({"messages": [{"role": "assistant", "content": "{"}]}, "messages"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "some"}}, "tool_choice"),
        ({"tools": [ADD] * 257}, "tools"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


def test_max_tokens_is_required():
    with pytest.raises(InvalidRequestError) as caught:
        Messages().read({k: v for k, v in ASKED.items() if k != "max_tokens"}, nothing_recorded)
    assert caught.value.param == "max_tokens"


def test_what_is_counted_is_the_prompt_and_nothing_that_bounds_the_answer():
    asked = {k: v for k, v in ASKED.items() if k != "max_tokens"}
    model, prompt = Messages().count(asked | {"system": "Be brief.", "tools": [ADD]})
    assert model == "denizen"
    assert prompt == {
        "messages": [{"role": "system", "content": "Be brief."}, *ASKED["messages"]],
        "tools": [CHAT_ADD],
    }


MESSAGE = {"content": "Well.", "reasoning": "hm", "tool_calls": CALLS}
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": ""},
    {"type": "text", "text": "Well."},
    {"type": "tool_use", "id": "call_a", "name": "add", "input": {"x": 1}},
    {"type": "tool_use", "id": "call_b", "name": "mul", "input": {}},
]


def test_a_whole_answer_is_a_message_with_its_blocks_and_usage():
    assert body_of(Messages(), ASKED, whole(MESSAGE, "tool_calls")) == {
        "id": "chatcmpl-1",
        "type": "message",
        "role": "assistant",
        "model": "denizen",
        "content": BLOCKS,
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }


@pytest.mark.parametrize(
    ("message", "finish", "stopped_by", "reason"),
    [
        ({"content": "x"}, "stop", None, ("end_turn", None)),
        ({"content": "x"}, "stop", 2, ("end_turn", None)),
        ({"content": "x"}, "stop", "END", ("stop_sequence", "END")),
        ({"content": "x"}, "length", None, ("max_tokens", None)),
        ({"content": "x"}, "content_filter", None, ("refusal", None)),
        ({"content": None, "tool_calls": CALLS}, "tool_calls", None, ("tool_use", None)),
        ({"content": None, "tool_calls": CALLS}, "stop", None, ("tool_use", None)),
        ({"content": None, "tool_calls": CALLS}, "length", None, ("max_tokens", None)),
        ({"content": "x"}, "tool_calls", None, ("end_turn", None)),
    ],
)
def test_the_reason_agrees_with_what_was_produced(message, finish, stopped_by, reason):
    """P-18: the same for stream and plain."""
    plain = body_of(Messages(), ASKED, whole(message, finish, stop_reason=stopped_by))
    assert (plain["stop_reason"], plain["stop_sequence"]) == reason
    deltas = [{k: v for k, v in message.items() if v}]
    events = events_of(Messages(), ASKED, chunks(*deltas, finish=finish, stop_reason=stopped_by))
    ended = events[-2]["delta"]
    assert (ended["stop_reason"], ended["stop_sequence"]) == reason


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"x": 1, "y": "ab', {"x": 1}), ("", {}), ("[1]", {}), ("no json", {})],
)
def test_of_arguments_that_were_cut_what_there_is_is_shown(arguments, shown):
    function = {"name": "add", "arguments": arguments}
    message = {"content": None, "tool_calls": [{"id": "a", "function": function}]}
    [block] = body_of(Messages(), ASKED, whole(message, "length"))["content"]
    assert block["input"] == shown


def assembled(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks that a stream's deltas add up to; one is open at a time."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"] | {"said": ""})
            is_open = True
        elif event["type"] == "content_block_delta":
            assert is_open
            [said] = [text for name, text in event["delta"].items() if name != "type"]
            blocks[event["index"]]["said"] += said
        elif event["type"] == "content_block_stop":
            is_open = False
    assert not is_open
    return blocks


def test_a_stream_grows_block_by_block_to_what_the_whole_answer_is():
    """P-16, P-17: of calls that interleave the second follows when the first is complete."""
    events = events_of(Messages(), ASKED, chunks(*DELTAS, finish="tool_calls"))
    said = [(block["type"], block["said"]) for block in assembled(events)]
    assert said == [
        ("thinking", "hm"),
        ("text", "Well."),
        ("tool_use", '{"x": 1}'),
        ("tool_use", "{}"),
    ]
    assert [block.get("name") for block in assembled(events)] == [None, None, "add", "mul"]
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["usage"]["input_tokens"] == 3
    assert events[-2]["usage"] == {"input_tokens": 3, "output_tokens": 2}


def test_text_after_a_call_follows_it():
    deltas = [*DELTAS[4:6], {"content": "after"}, {"tool_calls": DELTAS[8]["tool_calls"]}]
    blocks = assembled(events_of(Messages(), ASKED, chunks(*deltas, finish="tool_calls")))
    assert [(b["type"], b["said"]) for b in blocks] == [("tool_use", '{"x": 1}'), ("text", "after")]


def test_a_stream_that_broke_off_ends_with_the_error_and_no_stop():
    reply, capture = new_reply(Messages(), ASKED)
    [first, *_] = chunks()
    capture.absorb(first)
    list(reply.events(first))
    [event] = reply.failure(EngineError("broke"))
    assert event == (
        b'event: error\ndata: {"type":"error","error":'
        b'{"type":"api_error","message":"broke","param":null}}\n\n'
    )


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequestError("x"), "invalid_request_error"),
        (EngineRejectedError("x", status=422), "invalid_request_error"),
        (NotFoundError("x"), "not_found_error"),
        (EngineUnavailableError("x"), "overloaded_error"),
        (EngineError("x"), "api_error"),
    ],
)
def test_an_error_has_anthropics_body(error, kind):
    body = Messages().error(error)
    assert body == {"type": "error", "error": {"type": kind, "message": "x", "param": None}}
