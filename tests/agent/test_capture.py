import copy

import pytest

from agent.capture import Capture


def capture(**fields) -> Capture:
    asked = {"asked_model": "denizen", "asked_logprobs": False, "asked_token_ids": False}
    return Capture(**asked | fields)


def chunk(content="", ids=(), logprobs=(), finish=None, **delta) -> dict:
    entries = [{"token": "x", "logprob": logprob} for logprob in logprobs]
    choice = {
        "index": 0,
        "delta": {"content": content, **delta},
        "logprobs": {"content": entries} if entries else None,
        "finish_reason": finish,
        "token_ids": list(ids),
    }
    return {"id": "chatcmpl-1", "model": "denizen-000007", "choices": [choice]}


def test_tokens_that_share_a_chunk_are_all_kept():
    kept = capture()
    kept.chunk(chunk("12", [33, 34], [-0.5, -0.25]))
    kept.chunk(chunk("", [2], [-0.1], finish="stop"))
    choice = kept.choices[0]
    assert (choice.token_ids, choice.known_logprobs()) == ([33, 34, 2], [-0.5, -0.25, -0.1])
    assert choice.message() == {"role": "assistant", "content": "12"}
    assert choice.finish_reason == "stop"


def test_a_floor_value_is_an_unknown_logprob_and_not_a_number():
    kept = capture()
    kept.chunk(chunk("1", [33], [-9999.0]))
    assert kept.choices[0].known_logprobs() == [None]


def test_a_token_without_its_logprob_leaves_none_for_the_whole_choice():
    kept = capture()
    kept.chunk(chunk("12", [33, 34], [-0.5]))
    assert kept.choices[0].known_logprobs() is None


def test_interleaved_tool_calls_stay_apart():
    kept = capture()
    for index, call_id, name, arguments in (
        (0, "a", "add", ""),
        (1, "b", "mul", ""),
        (0, None, None, '{"x"'),
        (1, None, None, '{"y"'),
        (0, None, None, ": 1}"),
        (1, None, None, ": 2}"),
    ):
        function = {"name": name, "arguments": arguments}
        kept.chunk(chunk(tool_calls=[{"index": index, "id": call_id, "function": function}]))
    calls = kept.choices[0].message()["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("a", "add", '{"x": 1}'),
        ("b", "mul", '{"y": 2}'),
    ]


def test_the_tool_calls_of_a_whole_answer_are_shown_as_they_came_and_kept():
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": '{"x": 1}'}}
        for name in ("b", "a")
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    body = {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
    }
    kept = capture()
    assert kept.answer(copy.deepcopy(body))["choices"][0]["message"] == message
    assert kept.choices[0].message() == message | {"content": ""}


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None}])
def test_a_token_inside_tool_markup_is_kept_and_not_shown(delta):
    kept = capture()
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    markup = {"id": "chatcmpl-1", "choices": [choice | {"token_ids": [33]}]}
    assert kept.chunk(copy.deepcopy(markup)) is None
    assert kept.choices[0].token_ids == [33]
    asked = capture(asked_token_ids=True)
    assert asked.chunk(copy.deepcopy(markup))["choices"][0]["delta"] == delta
    last = {"id": "chatcmpl-1", "choices": [choice | {"finish_reason": "tool_calls"}]}
    assert kept.chunk(last) is not None


def test_a_chunk_that_exists_only_for_the_record_is_not_shown():
    kept = capture()
    assert kept.chunk(chunk("", [33], [-0.5])) is None
    assert kept.chunk(chunk("", [2], [-0.5], finish="stop")) is not None
    assert kept.choices[0].token_ids == [33, 2]
    asked = capture(asked_token_ids=True)
    assert asked.chunk(chunk("", [33], [-0.5])) is not None


def test_the_usage_chunk_with_no_choices_passes_and_is_kept():
    kept = capture()
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    assert kept.chunk({"id": "chatcmpl-1", "choices": [], "usage": usage}) is not None
    assert kept.usage == usage


def test_what_the_client_sees_hides_names_ids_and_logprobs_it_did_not_ask_for():
    seen = capture().chunk(copy.deepcopy(chunk("12", [33], [-0.5])))
    assert seen["model"] == "denizen"
    assert seen["choices"][0]["token_ids"] is None
    assert seen["choices"][0]["logprobs"] is None


def test_thinking_is_kept_in_its_own_field_under_either_name():
    for name in ("reasoning", "reasoning_content"):
        kept = capture()
        kept.chunk(chunk("", **{name: "hmm"}))
        kept.chunk(chunk("12"))
        message = {"role": "assistant", "content": "12", "reasoning": "hmm"}
        assert kept.choices[0].message() == message


def test_nothing_that_came_is_no_message():
    kept = capture()
    kept.chunk({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    assert kept.choices[0].message() is None
