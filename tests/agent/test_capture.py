from agent.capture import Capture


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
    kept = Capture()
    kept.absorb(chunk("12", [33, 34], [-0.5, -0.25]))
    kept.absorb(chunk("", [2], [-0.1], finish="stop"))
    choice = kept.choices[0]
    assert (choice.token_ids, choice.known_logprobs()) == ([33, 34, 2], [-0.5, -0.25, -0.1])
    assert choice.message() == {"role": "assistant", "content": "12"}
    assert choice.finish_reason == "stop"


def test_a_floor_value_is_an_unknown_logprob_and_not_a_number():
    kept = Capture()
    kept.absorb(chunk("1", [33], [-9999.0]))
    assert kept.choices[0].known_logprobs() == [None]


def test_a_token_without_its_logprob_leaves_none_for_the_whole_choice():
    kept = Capture()
    kept.absorb(chunk("12", [33, 34], [-0.5]))
    assert kept.choices[0].known_logprobs() is None


def test_interleaved_tool_calls_stay_apart():
    kept = Capture()
    for index, call_id, name, arguments in (
        (0, "a", "add", ""),
        (1, "b", "mul", ""),
        (0, None, None, '{"x"'),
        (1, None, None, '{"y"'),
        (0, None, None, ": 1}"),
        (1, None, None, ": 2}"),
    ):
        function = {"name": name, "arguments": arguments}
        kept.absorb(chunk(tool_calls=[{"index": index, "id": call_id, "function": function}]))
    calls = kept.choices[0].message()["tool_calls"]
    assert [(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("a", "add", '{"x": 1}'),
        ("b", "mul", '{"y": 2}'),
    ]


def test_a_whole_answer_is_kept_as_its_chunks_are():
    function = {"name": "add", "arguments": '{"x": 1}'}
    calls = [{"id": name, "type": "function", "function": function} for name in ("b", "a")]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "token_ids": [5, 2], "finish_reason": "tool_calls"}
    kept = Capture()
    kept.absorb({"id": "chatcmpl-1", "prompt_token_ids": [1], "choices": [choice]})
    assert kept.choices[0].message() == message | {"content": ""}
    assert (kept.prompt_token_ids, kept.choices[0].token_ids) == ([1], [5, 2])


def test_a_token_inside_tool_markup_is_kept():
    kept = Capture()
    kept.absorb({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "token_ids": [33]}]})
    assert kept.choices[0].token_ids == [33]


def test_the_text_of_a_completion_is_kept_with_its_own_forms_of_ids_and_logprobs():
    kept = Capture()
    for place, text in enumerate(("1", "2")):
        told = {"token_logprobs": [-0.5, None][place : place + 1], "tokens": [text]}
        choice = {"index": 0, "text": text, "token_ids": [33 + place], "logprobs": told}
        choice["prompt_token_ids"] = [7, 8] if place == 0 else None
        kept.absorb({"id": "cmpl-1", "choices": [choice]})
    assert kept.choices[0].message() == {"role": "assistant", "content": "12"}
    assert kept.choices[0].token_ids == [33, 34]
    assert kept.choices[0].known_logprobs() == [-0.5, None]
    assert kept.prompt_token_ids == [7, 8]


def test_the_usage_is_kept_wherever_it_comes():
    kept = Capture()
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    kept.absorb({"id": "chatcmpl-1", "choices": [], "usage": usage})
    kept.absorb(chunk("late", [33], [-0.5]))
    assert kept.usage == usage


def test_the_stop_sequence_that_ended_an_answer_is_kept():
    kept = Capture()
    body = chunk("", finish="stop")
    body["choices"][0]["stop_reason"] = "END"
    kept.absorb(body)
    assert kept.choices[0].stop_reason == "END"


def test_thinking_is_kept_in_its_own_field_under_either_name():
    for name in ("reasoning", "reasoning_content"):
        kept = Capture()
        kept.absorb(chunk("", **{name: "hmm"}))
        kept.absorb(chunk("12"))
        message = {"role": "assistant", "content": "12", "reasoning": "hmm"}
        assert kept.choices[0].message() == message


def test_nothing_that_came_is_no_message():
    kept = Capture()
    kept.absorb({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"role": "assistant"}}]})
    assert kept.choices[0].message() is None
