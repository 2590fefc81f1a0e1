import copy
from typing import Any

import pytest

from agent.dialects.completions import Completions
from memory.errors import InvalidRequestError
from tests.agent.told import body_of, events_of, nothing_recorded

ASKED: dict[str, Any] = {"model": "denizen", "prompt": "3 * 4 ="}


def read(**fields: Any) -> Any:
    return Completions().read(ASKED | fields, nothing_recorded)


def chunk(text: str, ids: list[int], finish: str | None = None) -> dict[str, Any]:
    logprobs = {"token_logprobs": [-0.5] * len(ids), "tokens": [text]}
    spoken = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
    return {"id": "cmpl-1", "model": "base", "choices": [spoken | {"token_ids": ids}]}


def test_the_engine_is_asked_for_ids_and_the_sampled_tokens_logprobs():
    exact = {"return_token_ids": True, "logprobs": 0}
    assert read(max_tokens=4, echo=False, user="ann").body == ASKED | exact | {"max_tokens": 4}
    assert read(logprobs=3).body["logprobs"] == 3
    assert read().path == "/v1/completions"


@pytest.mark.parametrize(
    ("prompt", "forwarded"),
    [([1, 9, 8], [1, 9, 8]), (["x"], "x"), ([[1, 9, 8]], [1, 9, 8])],
)
def test_a_prompt_is_text_or_token_ids_also_in_a_list_of_one(prompt, forwarded):
    assert read(prompt=prompt).body["prompt"] == forwarded


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"n": 17}, "n"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        read(**fields)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


def test_prompts_of_other_token_ids_are_other_conversations():
    first, second = read(prompt=[1, 2]), read(prompt=[1, 3])
    assert first.messages != second.messages


def test_a_client_sees_ids_and_logprobs_only_if_it_asked():
    answer = chunk("12", [33], "stop")
    answer["choices"][0]["prompt_token_ids"] = [1, 2]
    [seen] = body_of(Completions(), ASKED, copy.deepcopy(answer))["choices"]
    hidden = (seen["logprobs"], seen["token_ids"], seen["prompt_token_ids"])
    assert (seen["text"], *hidden) == ("12", None, None, None)
    asked = ASKED | {"logprobs": 0, "return_token_ids": True}
    assert body_of(Completions(), asked, copy.deepcopy(answer))["choices"] == answer["choices"]


def test_a_stream_shows_its_text_and_no_chunk_without_any():
    stream = [chunk("1", [33]), chunk("", [34]), chunk("2", [35]), chunk("", [2], "stop")]
    events = events_of(Completions(), ASKED | {"stream": True}, stream)
    assert [event["choices"][0]["text"] for event in events] == ["1", "2", ""]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
