"""What is told of a recorded turn: what came after it, and how it ended."""

from dataclasses import replace
from typing import Any

import pytest

from learner.sequels import MAX_CHARACTERS, NUM_FIRST, NUM_LAST, turns_of
from memory.types import Call, CallStatus, Edge, Feedback, GradeKind, Outcome
from tests import records

ASKED = {"role": "user", "content": "mend it"}


def turn(
    number: int, said: str, *told: dict[str, Any], after: Call | None = None, **f: Any
) -> Call:
    """Return a call whose messages go on from those of the call before."""
    messages = [ASKED]
    if after is not None:
        messages = [*after.request["messages"], after.message, *told]
        f = {"parent_id": after.id, "edge": Edge.CONTINUATION} | f
    return records.call(
        id=f"c{number}",
        request={"messages": messages} | f.pop("request", {}),
        message={"role": "assistant", "content": said},
        **f,
    )


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


FIRST = turn(1, "run it")
SECOND = turn(2, "mended", tool("it fails"), after=FIRST)
THIRD = turn(3, "done", tool("it passes"), after=SECOND)
LINE = [FIRST, SECOND, THIRD]
BY_CHECK = Outcome(value=0.0, provenance=GradeKind.CHECK, num_grades=1)


def test_a_turn_is_followed_by_itself_what_came_back_and_how_it_ended() -> None:
    first, second, third = turns_of(LINE, BY_CHECK, ())
    assert first.followed == (
        "[assistant]\nrun it\n\n[tool]\nit fails\n\n[assistant]\nmended\n\n[tool]\nit passes\n\n"
        "[assistant]\ndone\n\n[how it ended]\ngraded 0.00 by a check (1 is best)"
    )
    assert "run it" not in second.followed and "it passes" in second.followed
    assert third.followed.startswith("[assistant]\ndone\n\n[how it ended]")


def test_a_turn_of_which_nothing_came_is_none() -> None:
    assert [one.call.id for one in turns_of(LINE, None, ())] == ["c1", "c2"]


def test_what_a_judge_said_is_no_evidence_for_a_judge() -> None:
    by_judge = Outcome(value=0.0, provenance=GradeKind.JUDGE, num_grades=1)
    assert turns_of([FIRST], by_judge, ()) == []


def test_what_people_said_is_told() -> None:
    said = Feedback(
        id="f",
        episode_id="ep_1",
        created_at=records.NOON,
        value=0.0,
        comment="wrong file",
        correction="edit b.py",
    )
    [told] = turns_of([FIRST], None, [said])
    assert told.followed.endswith("a person said: wrong file\nit should have been: edit b.py")


@pytest.mark.parametrize(
    "fields",
    [
        {"learn": False},
        {"withheld": "control_tokens"},
        {"status": CallStatus.CANCELLED},
        {"request": {"tool_choice": "required"}},
        {"request": {"tool_choice": {"type": "function"}}},
        {"request": {"response_format": {"type": "json_object"}}},
        {"request": {"dialect": "completions"}},
    ],
)
def test_a_turn_that_may_not_teach_or_was_forced_is_not_taken_again(fields: Any) -> None:
    assert turns_of([turn(1, "x", **fields)], BY_CHECK, ()) == []


def test_calls_beside_the_task_are_no_turns_and_no_sequel() -> None:
    title = turn(4, "A TITLE", tool("x"), after=FIRST, edge=Edge.SIDE_CALL)
    told = turns_of([FIRST, title, SECOND], None, ())
    assert [one.call.id for one in told] == ["c1"]
    assert "A TITLE" not in told[0].followed


def test_of_several_attempts_the_one_that_was_gone_on_with_is_told() -> None:
    again = replace(
        SECOND, id="c2b", edge=Edge.RETRY, message={"role": "assistant", "content": "B"}
    )
    after = replace(THIRD, parent_id="c2")
    [first, *_] = turns_of([FIRST, SECOND, again, after], None, ())
    assert "mended" in first.followed and "done" in first.followed
    last = turns_of([FIRST, SECOND, again], None, ())[0]
    assert last.followed.endswith("[assistant]\nB"), "none was gone on with: the last was used"


def test_another_branch_is_not_what_followed() -> None:
    fork = turn(5, "another way", tool("other"), after=FIRST, edge=Edge.FORK)
    assert turns_of([FIRST, fork], None, ()) == []


def test_a_long_sequel_is_told_from_both_ends() -> None:
    line = [FIRST]
    for number in range(2, 40):
        line.append(turn(number, f"turn {number} {'x' * 5_000}", tool("r"), after=line[-1]))
    told = turns_of(line, BY_CHECK, ())[0].followed
    assert "turn 2 " in told and "turn 39 " in told and "turn 20 " not in told
    assert "messages …]" in told and "characters …]" in told
    assert len(told) < (NUM_FIRST + NUM_LAST + 2) * (MAX_CHARACTERS + 100)
