from typing import Any

import pytest

from graders.outcome import merge
from graders.reactions import read_reactions
from memory.types import Call, Edge, Grade, GradeKind
from tests.records import call

QUESTION = "What is the capital of Australia, please?"
ANSWER = "The capital of Australia is Sydney, which is also its largest city."


def turn(next_message: dict[str, Any], *, answer: str = ANSWER, edge: Edge = Edge.CONTINUATION):
    asked = [{"role": "user", "content": QUESTION}]
    said = {"role": "assistant", "content": answer}
    first = call(id="c1", request={"messages": asked}, message=said)
    second = call(
        id="c2",
        parent_id="c1",
        edge=edge,
        request={"messages": [*asked, said, next_message]},
        message={"role": "assistant", "content": "ok"},
    )
    return [first, second]


def rules(calls: list[Call]) -> list[str]:
    return [grade.evidence["rule"] for grade in read_reactions(calls)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is the capital of Australia please", "repeats"),
        (QUESTION, "repeats"),
        ("That's wrong.", "says_wrong"),
        ("No, it is Canberra", "says_wrong"),
        ("you are mistaken", "says_wrong"),
        ("That is not what I asked", "says_wrong"),
        ("It doesn’t work", "says_wrong"),
        ("Please try again", "says_wrong"),
        ("The capital of Australia is Canberra, while Sydney is its largest city.", "edits"),
        ("Thanks!", "accepts"),
        ("perfect, that works", "accepts"),
        ("That's right", "accepts"),
        ("Yes, exactly", "accepts"),
        ("No problem. And of New Zealand?", None),
        ("no more questions", None),
        ("Thanks, but what about New Zealand?", None),
        ("What is the capital of New Zealand?", None),
        ("And its population?", None),
        ("", None),
    ],
)
def test_what_a_user_says_next_is_read_by_rules(text: str, expected: str | None) -> None:
    found = rules(turn({"role": "user", "content": text}))
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("Error: no such file", True),
        ("Traceback (most recent call last):\n  …\nKeyError: 'a'", True),
        ('{"error": "not found"}', True),
        ('{"success": false}', True),
        ("bash: foo: command not found", False),  # not at the beginning: a log may quote it
        ("process exited with code 2", True),
        ('{"error": null, "rows": 3}', False),
        ("0 errors found", False),
        ("exited with code 0", False),
    ],
)
def test_a_tool_that_failed_is_seen(text: str, failed: bool) -> None:
    found = rules(turn({"role": "tool", "tool_call_id": "t", "content": text}))
    assert found == (["tool_failed"] if failed else [])


def test_a_question_with_another_number_is_another_question() -> None:
    asked = [{"role": "user", "content": "How much is 17 times 23 in total?"}]
    said = {"role": "assistant", "content": "391"}
    first = call(id="c1", request={"messages": asked}, message=said)
    more = {"role": "user", "content": "How much is 17 times 24 in total?"}
    again = call(
        id="c2", parent_id="c1", edge=Edge.CONTINUATION, request={"messages": [*asked, said, more]}
    )
    assert rules([first, again]) == []


def test_a_request_that_comes_again_is_a_reaction_to_the_first_answer() -> None:
    first, again = call(id="c1"), call(id="c2", edge=Edge.RETRY)
    [grade] = read_reactions([first, again])
    assert (grade.evidence["rule"], grade.evidence["call_id"]) == ("asked_again", "c1")


def test_a_fork_says_nothing_of_the_answer_it_goes_back_before() -> None:
    calls = turn({"role": "user", "content": "That's wrong."}, edge=Edge.FORK)
    assert read_reactions(calls) == []


def test_a_reaction_is_shown_and_decides_nothing() -> None:
    [reaction] = read_reactions(turn({"role": "user", "content": "That's wrong."}))
    assert (reaction.kind, reaction.value) == (GradeKind.REACTION, 0.0)
    assert "wrong" in reaction.explanation
    assert merge([reaction]).value is None
    assert merge([reaction]).unscored_reason == "no grades"
    check = Grade(kind=GradeKind.CHECK, grader="exact", version="1", value=1.0)
    assert merge([reaction, check]).value == 1.0
