from typing import Any

from console.call_tree import learnable, tree_rows


def call(name: str, parent: str | None = None, edge: str | None = None, **fields: Any) -> dict:
    given = {
        "id": name,
        "parent": parent,
        "edge": edge,
        "status": "ok",
        "adapter": "base",
        "prompt_token_ids": [1, 2],
        "completion_token_ids": [3],
        "not_learnable_reason": None,
        "token_fates": {"trained": 1},
    }
    return given | fields


def test_what_goes_on_stays_in_its_column_and_branches_are_indented_before_it():
    calls = [
        call("a"),
        call("title", "a", "side_call"),
        call("b", "a", "continuation"),
        call("b again", "a", "retry"),
        call("c", "b", "compaction"),
        call("sub", "b", "sub_agent"),
        call("sub 2", "sub", "continuation"),
    ]
    assert [row[0] for row in tree_rows(calls)] == [
        "a",
        "└ title",
        "└ b again",
        "b",
        "└ sub",
        "└ sub 2",
        "c",
    ]
    assert tree_rows(calls)[1][1:] == ("a", "side_call", "ok", "base", "2 + 1", "yes")


def test_a_call_whose_parent_is_not_shown_begins_a_tree_and_none_is_lost():
    calls = [call("b", "gone", "continuation"), call("c", "b", "fork"), call("d", None, "session")]
    assert [row[0] for row in tree_rows(calls)] == ["b", "└ c", "d"]


def test_learnable_says_why_not_and_how_much():
    assert learnable(call("a")) == "yes"
    assert learnable(call("a", not_learnable_reason="retried")) == "retried"
    partly = call("a", token_fates={"trained": 5, "rerendered": 2})
    assert learnable(partly) == "5 tokens; not 2 rerendered"
