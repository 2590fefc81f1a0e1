import asyncio
import dataclasses
import sqlite3
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory import call_rows, tokens
from memory.call_rows import NewestSaid, Said
from memory.errors import StoreError
from memory.store import Store
from memory.types import Call, CallStatus, Edge
from tests import records

NO_TOKENS = dict.fromkeys(("prompt_token_ids", "completion_token_ids", "sampler_logprobs"))
LONG_TEXT = "The ferry left the harbour at nine with its lamps lit. " * 8
TOOLS = [{"type": "function", "function": {"name": "look", "description": LONG_TEXT}}]


def turn(number: int, before: Call | None = None, **fields: Any) -> Call:
    """Return a call that goes on where ``before`` ended."""
    said = [] if before is None else [*before.request["messages"], before.message]
    prompt = () if before is None else (*before.prompt_token_ids, *before.completion_token_ids)
    question = {"role": "user", "content": f"{number}: {LONG_TEXT}"}
    given = {
        "id": f"c{number}",
        "parent_id": None if before is None else before.id,
        "edge": None if before is None else Edge.CONTINUATION,
        "request": {"model": "denizen", "messages": [*said, question], "tools": TOOLS},
        "message": {"role": "assistant", "content": f"{number} is {LONG_TEXT}"},
        "prompt_token_ids": (*prompt, *range(number * 100, number * 100 + 90)),
    }
    return records.call(**given | fields)


def conversation(length: int) -> list[Call]:
    calls = [turn(0)]
    while len(calls) < length:
        calls.append(turn(len(calls), calls[-1]))
    return calls


async def record(store: Store, *calls: Call) -> None:
    for call in calls:
        await store.episodes.record(records.episode(id=call.episode_id), [call], [None])


def row_of(store: Store, call_id: str) -> dict[str, Any]:
    return store.database.read("SELECT * FROM calls WHERE id = ?", (call_id,))[0]


async def test_what_was_said_is_read_without_a_look_at_the_tokens(store, monkeypatch):
    calls = conversation(12)
    await record(store, *calls)
    monkeypatch.setattr(tokens, "decode_ids", None)
    monkeypatch.setattr(tokens, "decode_logprobs", None)
    read = store.episodes.call_texts("ep_1")
    assert read == [dataclasses.replace(call, **NO_TOKENS) for call in calls]
    assert store.episodes.call_texts("ep_1", limit=5) == read[:5]


async def test_answers_come_newest_first_and_only_where_there_is_one(store):
    first = turn(0)
    failed = turn(1, first, message=None, status=CallStatus.ERROR)
    last = turn(2, first, learn=False)
    await record(store, first, failed, last)
    assert store.episodes.answers("ep_1") == [
        {"id": call.id, "status": "ok", "learn": call.learn, "message": call.message}
        for call in (last, first)
    ]


async def test_a_conversation_reads_back_equal_whole_and_call_by_call(store):
    calls = conversation(12)
    await record(store, *calls)
    assert store.episodes.calls("ep_1") == calls
    assert store.episodes.calls("ep_1", limit=5) == calls[:5]
    assert [store.episodes.call(call.id) for call in calls] == calls


async def test_what_is_repeated_is_not_stored_again(store):
    first, second = conversation(2)
    await record(store, first, second)
    row = row_of(store, "c1")
    assert row["base_id"] == "c0"
    assert orjson.loads(row["shared"]) == {"tokens": 92, "messages": 2, "fields": ["tools"]}
    assert tokens.decode_ids(row["prompt_token_ids"]) == tuple(range(100, 190))
    request = orjson.loads(row["request"])
    assert list(request) == ["model", "messages", "tools"]
    assert request["tools"] is None
    assert request["messages"] == second.request["messages"][2:]


async def test_short_values_stay_where_they_can_be_asked_for_in_sql(store):
    await record(store, *conversation(3))
    assert store.episodes.finder.last_adapter("ep_1", asked_model="denizen") == "base"


async def test_an_answer_given_back_with_other_keys_is_not_stored_again(store):
    first = turn(0, message={"role": "assistant", "content": LONG_TEXT, "reasoning": "so"})
    given_back = {"content": LONG_TEXT, "role": "assistant", "refusal": None}
    messages = [*first.request["messages"], given_back, {"role": "user", "content": "and?"}]
    second = turn(1, first, request={"messages": messages})
    await record(store, first, second)
    assert orjson.loads(row_of(store, "c1")["shared"])["answer"] == ["content"]
    read = store.episodes.calls("ep_1")[1]
    assert orjson.dumps(read.request) == orjson.dumps(second.request)  # the order of keys too


async def test_numbers_that_only_seem_equal_are_kept_apart(store):
    def odd(value: Any) -> dict[str, Any]:
        return {"role": "user", "content": LONG_TEXT, "extra": value}

    first = turn(0, request={"messages": [odd(1), odd(True)]})
    second = turn(1, first, request={"messages": [odd(1.0), odd(1)]})
    await record(store, first, second)
    assert orjson.dumps(store.episodes.call("c1").request) == orjson.dumps(second.request)


async def test_choices_of_one_answer_repeat_nothing(store):
    choices = [turn(0, id=f"c.{n}", message={"role": "assistant", "content": str(n)}) for n in "ab"]
    await store.episodes.record(records.episode(), choices, [None, None])
    assert store.episodes.calls("ep_1") == choices
    assert row_of(store, "c.b")["prompt_token_ids"] == b""


@pytest.mark.parametrize("parent", ["nowhere", "c_of_another_episode"])
async def test_a_call_whose_parent_is_not_in_its_episode_stands_for_itself(store, parent):
    other = turn(0, id="c_of_another_episode", episode_id="ep_2")
    orphan = turn(1, turn(0), parent_id=parent)
    await record(store, other, orphan)
    assert row_of(store, "c1")["base_id"] is None
    assert store.episodes.call("c1") == orphan


async def test_a_call_without_token_ids_keeps_none_and_its_children_are_whole(store):
    first = turn(0)
    failed = turn(1, first, prompt_token_ids=None, completion_token_ids=None, message=None)
    failed = dataclasses.replace(failed, sampler_logprobs=None, status=CallStatus.ERROR)
    third = turn(2, first, parent_id="c1")
    await record(store, first, failed, third)
    assert store.episodes.calls("ep_1") == [first, failed, third]


async def test_a_fork_and_a_shortened_history_read_back_equal(store):
    first, second, third = conversation(3)
    fork = turn(7, first)
    shortened = turn(8, third, request={"messages": third.request["messages"][2:]})
    shortened = dataclasses.replace(shortened, prompt_token_ids=third.prompt_token_ids[50:])
    await record(store, first, second, third, fork, shortened)
    assert store.episodes.calls("ep_1") == [first, second, third, fork, shortened]


async def test_a_conversation_goes_on_after_a_restart(store):
    calls = conversation(5)
    await record(store, *calls[:4])
    again = Store(store.database.path)
    await record(again, calls[4])
    assert row_of(again, "c4")["base_id"] == "c3"
    assert again.episodes.calls("ep_1") == calls
    again.close()


async def test_a_write_that_was_undone_leaves_no_base_behind(store):
    first, second = conversation(2)
    store.database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))
    padded = dataclasses.replace(first, error="x" * 10_000_000)
    with pytest.raises(StoreError, match="full"):
        await record(store, padded)
    store.database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    await record(store, second)
    assert row_of(store, "c1")["base_id"] is None
    assert store.episodes.call("c1") == second


async def test_a_refused_double_changes_nothing_of_what_is_remembered_of_the_first(store):
    first, second = conversation(2)
    await record(store, first)
    with pytest.raises(StoreError, match="UNIQUE"):
        await record(store, dataclasses.replace(first, prompt_token_ids=(5, 5, 5)))
    await record(store, second)
    assert store.episodes.call("c1") == second


async def test_the_database_refuses_to_lose_a_base_and_lets_the_episode_go_as_a_whole(store):
    await record(store, *conversation(3))
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.database.write(lambda db: db.execute("DELETE FROM calls WHERE id = 'c1'"))
    store.database.write(lambda db: db.execute("DELETE FROM calls WHERE episode_id = 'ep_1'"))
    assert store.episodes.calls("ep_1") == []


async def test_a_base_that_was_removed_by_force_is_named(store):
    await record(store, *conversation(3))
    with sqlite3.connect(store.database.path) as connection:  # where no foreign key is looked at
        connection.execute("DELETE FROM calls WHERE id = 'c0'")
    connection.close()
    with pytest.raises(StoreError, match="'c1' is based on 'c0'"):
        store.episodes.calls("ep_1")


def test_the_newest_said_is_bounded_by_its_size():
    newest = NewestSaid(max_bytes=1_000)
    for number in range(10):
        prompt = bytes(300)
        said = Said(prompt=prompt, completion=b"", messages=[], answer=None, fields={})
        newest.put(str(number), said)
    assert [str(n) for n in range(10) if newest.get(str(n))] == ["7", "8", "9"]


def test_shared_ids_are_counted_up_to_the_first_that_differs():
    one, other = tokens.encode_ids([1, 2, 3, 4]), tokens.encode_ids([1, 2, 9, 4, 5])
    assert tokens.num_shared(one, other) == 2
    assert tokens.num_shared(one, one + other) == 4
    assert tokens.num_shared(b"", one) == 0
    # 0x0100 and 0x0001_00.. share bytes, not ids
    assert tokens.num_shared(tokens.encode_ids([1]), tokens.encode_ids([257])) == 0


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=400)
any_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | any_text | st.floats(-1e9, 1e9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)
message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"])}) | st.dictionaries(
    st.sampled_from(["role", "content", "tool_calls", "name"]), any_json
)


@st.composite
def trees(draw: st.DrawFn) -> list[Call]:
    """Draw calls, each of which may repeat a piece of an earlier one."""
    pool = draw(st.lists(message, min_size=1, max_size=6))
    calls: list[Call] = []
    for number in range(draw(st.integers(1, 6))):
        parent = draw(st.sampled_from([None, *calls]))
        kept: Sequence[Any] = []
        ids: tuple[int, ...] = ()
        if parent is not None:
            kept = [*parent.request["messages"], *([parent.message] if parent.message else [])]
            kept = kept[: draw(st.integers(0, len(kept)))]
            ids = (*(parent.prompt_token_ids or ()), *(parent.completion_token_ids or ()))
            ids = ids[: draw(st.integers(0, len(ids)))]
        messages = [*kept, *draw(st.lists(st.sampled_from(pool), max_size=3))]
        more = draw(st.lists(st.integers(0, 2**32 - 1), max_size=80))
        fields = draw(st.dictionaries(st.sampled_from(["tools", "stop", "x"]), any_json))
        calls.append(
            records.call(
                id=f"c{number}",
                parent_id=None if parent is None else parent.id,
                request=fields | {"messages": messages},
                message=draw(st.none() | st.sampled_from(pool)),
                prompt_token_ids=draw(st.sampled_from([None, (*ids, *more)])),
            )
        )
    return calls


@given(calls=trees())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tree_reads_back_byte_for_byte(store, calls):
    episode_id = f"ep_{store.episodes.counts()['episodes']}"
    names = {call.id: f"{episode_id}-{call.id}" for call in calls}
    calls = [
        dataclasses.replace(
            call,
            id=names[call.id],
            episode_id=episode_id,
            parent_id=names.get(call.parent_id),
        )
        for call in calls
    ]
    asyncio.run(record(store, *calls))
    read = store.episodes.calls(episode_id)
    assert read == calls
    assert [orjson.dumps(one.request) for one in read] == [orjson.dumps(c.request) for c in calls]
    assert [store.episodes.call(call.id) for call in calls] == calls
    assert store.episodes.call_texts(episode_id) == [
        dataclasses.replace(c, **NO_TOKENS) for c in calls
    ]


def test_a_row_that_names_no_base_is_read_as_it_is():
    row, _ = call_rows.encode(turn(0))
    assert list(call_rows.decode([row])) == [turn(0)]
