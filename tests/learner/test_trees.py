from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trees import TAIL_TOKENS, main_line, rows_of_tree
from memory.types import Call, CallStatus, Edge
from tests import records

EOS = 2


def call(name: str, prompt: list[int], completion: list[int], **fields: Any) -> Call:
    given = {
        "id": name,
        "request": {"messages": [{"role": "user", "content": str(prompt)}]},
        "prompt_token_ids": tuple(prompt),
        "completion_token_ids": tuple(completion),
        "sampler_logprobs": tuple(-0.5 for _ in completion),
        "latency_ms": 1_000.0,
    }
    return records.call(**given | fields)


def below(parent: str, edge: Edge = Edge.CONTINUATION, **fields: Any) -> dict[str, Any]:
    return {"parent_id": parent, "edge": edge, **fields}


def trained(row: Any) -> list[int]:
    return [t for t, is_trained in zip(row.token_ids, row.loss_mask, strict=True) if is_trained]


def test_calls_that_go_on_exactly_are_one_row_that_trains_every_sampled_token():
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20, EOS]),
            call("b", [1, 10, 20, EOS, 11], [21, EOS], **below("a")),
            call("c", [1, 10, 20, EOS, 11, 21, EOS, 12], [22], **below("b")),
        ],
        group_id="g",
        advantage=0.5,
    )
    [row] = tree.rows
    assert row.token_ids == (1, 10, 20, EOS, 11, 21, EOS, 12, 22)
    assert [int(flag) for flag in row.loss_mask] == [0, 0, 1, 1, 0, 1, 1, 0, 1]
    assert row.advantages == (0.0, 0.0, 0.5, 0.5, 0.0, 0.5, 0.5, 0.0, 0.5)
    assert tree.account == {"trained": 5}


def test_a_prompt_that_goes_another_way_begins_a_row_in_which_nothing_is_trained_twice():
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20, 23, EOS]),
            call("b", [1, 10, 20, 23, EOS, 11], [21], **below("a")),
            call("c", [1, 10, 20, 23, EOS, 12], [22], **below("a", Edge.FORK)),
        ],
        group_id="g",
    )
    assert [trained(row) for row in tree.rows] == [[20, 23, EOS, 21], [22]]
    assert tree.rows[1].token_ids == (1, 10, 20, 23, EOS, 12, 22)
    assert tree.account == {"trained": 5}


def test_an_end_that_is_written_differently_afterwards_is_context_and_counted():
    # sampled: 20 21 space(5) EOS; the template trims the space: 20 21 EOS
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20, 21, 5, EOS]),
            call("b", [1, 10, 20, 21, EOS, 11], [22], **below("a")),
        ],
        group_id="g",
    )
    [row] = tree.rows
    assert row.token_ids == (1, 10, 20, 21, EOS, 11, 22)
    assert trained(row) == [20, 21, 22]
    assert tree.fates == {"a": {"trained": 2, "rerendered": 2}, "b": {"trained": 1}}


def test_a_call_that_goes_on_exactly_is_preferred_to_one_that_does_not():
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20, 21, 5, EOS]),
            call("b", [1, 10, 20, 21, EOS, 11], [22], **below("a")),
            call("c", [1, 10, 20, 21, 5, EOS, 12], [23], **below("a", Edge.FORK)),
        ],
        group_id="g",
    )
    assert [trained(row) for row in tree.rows] == [[20, 21, 5, EOS, 23], [22]]
    assert tree.account == {"trained": 6}


@pytest.mark.parametrize(
    ("completion", "later"),
    [
        ([20, *range(30, 30 + TAIL_TOKENS + 1)], [20]),  # too much is different
        ([20, EOS], [21, EOS]),  # nothing is the same
    ],
)
def test_a_different_answer_is_not_taken_for_a_different_end(completion, later):
    calls = [
        call("a", [1, 10], completion),
        call("b", [1, 10, *later, 11], [22], **below("a")),
    ]
    tree = rows_of_tree(calls, group_id="g")
    assert [trained(row) for row in tree.rows] == [completion, [22]]
    assert tree.account == {"trained": len(completion) + 1}


def test_an_answer_that_was_cut_off_is_gone_on_with_in_the_same_row():
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20, 21], finish_reason="length"),
            call("b", [1, 10, 20, 21, EOS, 11], [22], **below("a")),
        ],
        group_id="g",
    )
    assert [trained(row) for row in tree.rows] == [[20, 21, 22]]


def test_a_call_above_that_cannot_be_trained_is_context_of_one_row():
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20]),
            call("b", [1, 10, 20, 11], [21], **below("a", sampler_logprobs=None)),
            call("c", [1, 10, 20, 11, 21, 12], [22], **below("b")),
        ],
        group_id="g",
    )
    assert [trained(row) for row in tree.rows] == [[20, 22]]
    assert tree.account == {"trained": 2, "no_logprobs": 1}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": CallStatus.CANCELLED}, "cancelled"),
        ({"status": CallStatus.ERROR}, "error"),
        ({"learn": False}, "learning_off"),
        ({"sampler_logprobs": None}, "no_logprobs"),
        ({"prompt_token_ids": ()}, "no_prompt"),
        ({"prompt_token_ids": None}, "no_token_ids"),
        ({"sampler_logprobs": (None, None)}, "unknown_logprob"),
    ],
)
def test_what_cannot_be_trained_makes_no_row_and_says_why(fields, reason):
    tree = rows_of_tree([call("a", [1, 10], [20, EOS], **fields)], group_id="g")
    assert tree.rows == ()
    assert tree.account == {reason: 2}


def test_of_two_attempts_the_one_that_was_gone_on_with_is_trained():
    start = {"parent_id": None, "edge": None}
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20], **start),
            call("b", [1, 10], [21], parent_id=None, edge=Edge.RETRY),
            call("c", [1, 10, 20, 11], [22], **below("a")),
        ],
        group_id="g",
    )
    assert [trained(row) for row in tree.rows] == [[20, 22]]
    assert tree.fates["b"] == {"retried": 1}


def test_of_attempts_one_after_the_other_the_last_is_trained():
    first = call("a", [1, 10], [20], created_at=records.NOON)
    second = call("b", [1, 10], [21], edge=Edge.RETRY, created_at=records.later(2))
    tree = rows_of_tree([first, second], group_id="g")
    assert [trained(row) for row in tree.rows] == [[21]]
    assert tree.account == {"retried": 1, "trained": 1}


def test_of_answers_sampled_side_by_side_that_nobody_went_on_with_none_is_trained():
    tree = rows_of_tree([call("a", [1, 10], [20]), call("a.1", [1, 10], [21])], group_id="g")
    assert tree.rows == ()
    assert tree.account == {"unresolved": 2}


def test_a_failed_attempt_leaves_the_other_one_trained():
    tree = rows_of_tree(
        [
            call("a", [1, 10], [20], status=CallStatus.ERROR),
            call("b", [1, 10], [21], edge=Edge.RETRY),
        ],
        group_id="g",
    )
    assert tree.account == {"error": 1, "trained": 1}


def test_the_main_line_leaves_out_what_ran_beside_it_with_all_that_hangs_there():
    calls = [
        call("a", [1], [20]),
        call("title", [5], [20], **below("a", Edge.SIDE_CALL)),
        call("sub", [6], [20], **below("a", Edge.SUB_AGENT)),
        call("sub again", [6], [20], **below("a", Edge.RETRY)),
        call("sub more", [6, 7], [20], **below("sub again")),
        call("b", [1, 20, 2], [21], **below("a")),
        call("b again", [1, 20, 2], [22], **below("a", Edge.RETRY)),
    ]
    assert [one.id for one in main_line(calls)] == ["a", "b", "b again"]


@st.composite
def trees(draw: st.DrawFn) -> list[Call]:
    """Return calls that extend, fork, retry or rewrite each other, sound or not."""
    token = st.integers(3, 6)  # few, so that equal beginnings happen
    calls: list[Call] = []
    for number in range(draw(st.integers(1, 8))):
        parent = draw(st.sampled_from([None, *calls]))
        prompt = [1]
        if parent is not None and parent.prompt_token_ids is not None:
            prompt = [*parent.prompt_token_ids, *(parent.completion_token_ids or ())]
            prompt = prompt[: len(prompt) - draw(st.integers(0, 3))]
        prompt += draw(st.lists(token, max_size=3))
        completion = draw(st.lists(token, max_size=5))
        logprobs = [draw(st.sampled_from([-0.5, None])) for _ in completion]
        calls.append(
            call(
                f"c{number}",
                prompt,
                completion,
                sampler_logprobs=draw(st.sampled_from([tuple(logprobs), None])),
                prompt_token_ids=draw(st.sampled_from([tuple(prompt)] * 5 + [None, ()])),
                status=draw(st.sampled_from([CallStatus.OK] * 4 + [CallStatus.CANCELLED])),
                learn=draw(st.sampled_from([True] * 5 + [False])),
                parent_id=None if parent is None else parent.id,
                edge=None if parent is None else draw(st.sampled_from(list(Edge))),
                created_at=records.NOON + timedelta(seconds=draw(st.integers(0, 3))),
            )
        )
    return calls


@given(calls=trees(), advantage=st.floats(-2, 2))
def test_every_sampled_token_is_trained_once_or_has_one_reason(calls, advantage):
    tree = rows_of_tree(calls, group_id="g", advantage=advantage)  # rows check themselves
    sampled = {one.id: len(one.completion_token_ids or ()) for one in calls}
    assert {id: sum(fate.values()) for id, fate in tree.fates.items()} == sampled
    assert all(n > 0 for fate in tree.fates.values() for n in fate.values())
    num_trained = sum(sum(row.loss_mask) for row in tree.rows)
    assert num_trained == tree.account.get("trained", 0)
    known = Counter(
        (place, *(one.prompt_token_ids or ()), *(one.completion_token_ids or ())[: i + 1])
        for one in calls
        for i, place in enumerate(range(len(one.prompt_token_ids or ()), 10_000))
        if i < len(one.completion_token_ids or ())
    )
    in_rows = Counter(
        (place, *row.token_ids[: place + 1])
        for row in tree.rows
        for place, is_trained in enumerate(row.loss_mask)
        if is_trained
    )
    assert in_rows <= known, "a token is trained only where, and as often as, it was sampled"


@given(calls=trees())
def test_unequal_advantages_change_no_mask(calls):
    masks = [
        [row.loss_mask for row in rows_of_tree(calls, group_id="g", advantage=a).rows]
        for a in (0.0, 1.0)
    ]
    assert masks[0] == masks[1]
