import json
from typing import Any

import pytest

from graders.catalog import require_gradable
from graders.tool_calls import TOOL_CALLS, score_tool_calls
from graders.types import Answer
from memory.errors import InvalidRequestError

Call = tuple[str, Any]
SEARCH = {"name": "search", "arguments": {"query": "x", "limit": 2}}
OPEN = {"name": "open", "arguments": {"path": "a"}}


def answer_of(made: list[Call], config: dict[str, Any]) -> Answer:
    calls = [
        {"function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)}}
        for name, a in made
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return Answer(messages=(), message=message, config=config)


X = ("search", {"query": "x", "limit": 2})
A = ("open", {"path": "a"})


@pytest.mark.parametrize(
    ("calls", "config", "value"),
    [
        ([X], {"calls": [SEARCH]}, 1.0),
        ([("search", '{"limit": 2.0, "query": "x"}')], {"calls": [SEARCH]}, 1.0),
        ([("search", {"query": "X", "limit": 2})], {"calls": [SEARCH]}, 0.0),
        ([("search", {"query": "x"})], {"calls": [SEARCH]}, 0.0),
        ([("search", {"query": "x", "limit": 2, "more": 1})], {"calls": [SEARCH]}, 0.0),
        ([("search", "{not json")], {"calls": [SEARCH]}, 0.0),
        ([("search", "[1]")], {"calls": [SEARCH]}, 0.0),
        ([("find", {"query": "x", "limit": 2})], {"calls": [SEARCH]}, 0.0),
        ([], {"calls": [SEARCH]}, 0.0),
        ([], {"calls": []}, 1.0),
        ([X], {"calls": []}, 0.0),
        ([X, A], {"calls": [OPEN, SEARCH]}, 1.0),
        ([X, A], {"calls": [OPEN, SEARCH], "any_order": False}, 0.0),
        ([A, X], {"calls": [OPEN, SEARCH], "any_order": False}, 1.0),
        ([X, X], {"calls": [SEARCH]}, 0.0),
        ([X, X], {"calls": [SEARCH], "allow_more": True}, 1.0),
        ([X], {"calls": [SEARCH, SEARCH]}, 0.0),
        ([A, X, A], {"calls": [SEARCH, OPEN], "any_order": False, "allow_more": True}, 1.0),
        ([("open", {})], {"calls": [{"name": "open"}]}, 1.0),
        ([("open", "")], {"calls": [{"name": "open"}]}, 1.0),
        (
            [("open", {"path": "b"})],
            {"calls": [{"name": "open", "any_of": {"path": ["a", "b"]}}]},
            1.0,
        ),
        (
            [("open", {"path": "c"})],
            {"calls": [{"name": "open", "any_of": {"path": ["a", "b"]}}]},
            0.0,
        ),
        (
            [("open", {"path": "a", "mode": "r"})],
            {"calls": [{**OPEN, "optional": ["mode"]}]},
            1.0,
        ),
        ([("open", {"path": True})], {"calls": [{"name": "open", "arguments": {"path": 1}}]}, 0.0),
        # The first fits both; the second only one: they are given to each other rightly.
        (
            [("open", {"path": "a"}), ("open", {"path": "b"})],
            {"calls": [{"name": "open", "any_of": {"path": ["a", "b"]}}, OPEN]},
            1.0,
        ),
    ],
)
def test_names_and_arguments_are_compared(calls, config, value) -> None:
    score = score_tool_calls(answer_of(calls, config))
    assert score.value == value, score.explanation
    assert score.explanation


def test_an_answer_of_text_only_calls_nothing() -> None:
    text = Answer(
        messages=(), message={"role": "assistant", "content": "hi"}, config={"calls": [SEARCH]}
    )
    assert score_tool_calls(text).value == 0.0


@pytest.mark.parametrize(
    "config", [{}, {"calls": [{}]}, {"calls": "search"}, {"calls": [], "order": 1}]
)
async def test_bad_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        require_gradable("tool_calls", reference=None, config=config)
    assert (await TOOL_CALLS.grade(answer_of([], config))).value is None
