import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory.errors import NotFoundError
from memory.grade_rows import set_grades
from memory.recording import CallKeys
from memory.types import CallStatus, Edge, EpisodeSource, Feedback, Grade, GradeKind, Outcome
from tests import records


def grade(value: float | None, **fields) -> Grade:
    reason = None if value is not None else "no reference"
    given = {"kind": GradeKind.CHECK, "grader": "exact", "version": "1", "value": value}
    return Grade(**given | {"unscored_reason": reason} | fields)


def outcome(value: float) -> Outcome:
    return Outcome(value=value, provenance=GradeKind.CHECK, num_grades=1)


async def test_what_was_recorded_reads_back_equal(store):
    episode, call = records.episode(reference="12", session="s"), records.call()
    await store.episodes.record(episode, [call], [CallKeys(answer="key")])
    assert store.episodes.get("ep_1") == episode
    assert store.episodes.calls("ep_1") == [call]


async def test_an_unknown_logprob_stays_unknown(store):
    call = records.call(sampler_logprobs=(None, -0.25))
    await store.episodes.record(records.episode(), [call], [None])
    assert store.episodes.calls("ep_1")[0].sampler_logprobs == (None, -0.25)


any_text = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    text=any_text,
    content=any_text,
    ids=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
    latency=st.floats(0, 1e9),
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_text_and_any_ids_survive_the_round_trip(store, text, content, ids, latency):
    number = store.episodes.counts()["episodes"]
    episode = records.episode(id=f"ep_{number}", task_text=text)
    call = records.call(
        id=f"call_{number}",
        episode_id=episode.id,
        message={"role": "assistant", "content": content},
        completion_token_ids=tuple(ids),
        sampler_logprobs=tuple(-0.5 for _ in ids),
        latency_ms=latency,
    )

    async def record() -> None:
        await store.episodes.record(episode, [call], [None])

    asyncio.run(record())
    assert store.episodes.get(episode.id) == episode
    assert store.episodes.calls(episode.id) == [call]


async def test_a_second_call_reopens_its_episode_for_grading(store):
    await store.episodes.record(records.episode(), [records.call()], [None])
    first = store.episodes.get("ep_1")
    store.database.write(lambda db: _grade(db, first))
    assert store.episodes.undigested(10) == []
    await store.episodes.record(first, [records.call(id="chatcmpl-2")], [None])
    assert [episode.id for episode in store.episodes.undigested(10)] == ["ep_1"]


async def test_feedback_that_comes_while_an_episode_is_digested_is_not_lost(store):
    await store.episodes.record(records.episode(), [records.call()], [None])
    being_digested = store.episodes.get("ep_1")
    said = Feedback(id="fb_1", episode_id="ep_1", created_at=records.NOON, value=1.0)
    await store.episodes.add_feedback(said)
    store.database.write(lambda db: _grade(db, being_digested))
    assert [episode.id for episode in store.episodes.undigested(10)] == ["ep_1"]
    assert store.episodes.feedback("ep_1") == [said]


async def test_regrading_keeps_the_old_grades_as_history(store):
    await store.episodes.record(records.episode(), [records.call()], [None])
    for value in (0.0, 1.0):
        store.database.write(lambda db, v=value: _grade(db, store.episodes.get("ep_1"), v))
    assert [g.value for g in store.episodes.grades("ep_1")] == [1.0]
    assert store.episodes.outcome("ep_1") == outcome(1.0)
    history = store.database.read("SELECT value FROM grades ORDER BY id")
    assert [row["value"] for row in history] == [0.0, 1.0]


async def test_practice_is_graded_when_it_is_stored_and_never_digested_again(store):
    episode = records.episode(source=EpisodeSource.PRACTICE, digested_revision=1)
    await store.practice.record([[(episode, records.call(), grade(0.5), outcome(0.5))]])
    assert store.episodes.undigested(10) == []
    assert store.episodes.outcome("ep_1") == outcome(0.5)
    assert (
        store.episodes.counts() | {"episodes": 0, "practice_episodes": 1} == store.episodes.counts()
    )


async def test_calls_are_found_by_their_conversation_and_say_whether_they_were_continued(store):
    keys = [CallKeys(answer="k", system="s")]
    await store.episodes.record(records.episode(), [records.call()], keys)
    later = records.call(id="chatcmpl-2", parent_id="chatcmpl-1", edge=Edge.CONTINUATION)
    await store.episodes.record(records.episode(), [later], keys)
    found = store.episodes.finder.find_answered(["missing", "k"], limit=9)
    assert [(one.call_id, one.is_continued) for one in found] == [
        ("chatcmpl-2", False),
        ("chatcmpl-1", True),
    ]
    assert found[0].system == "s"
    assert store.episodes.finder.find_answered([], limit=9) == []


async def test_a_side_call_continues_nothing(store):
    await store.episodes.record(records.episode(), [records.call()], [CallKeys(answer="k")])
    title = records.call(id="chatcmpl-2", parent_id="chatcmpl-1", edge=Edge.SIDE_CALL)
    await store.episodes.record(records.episode(), [title], [None])
    assert not store.episodes.finder.find_answered(["k"], limit=9)[-1].is_continued


async def test_attempts_at_a_request_are_found_newest_first(store):
    for number in (1, 2):
        call = records.call(id=f"c{number}", status=CallStatus.ERROR)
        await store.episodes.record(records.episode(), [call], [CallKeys(request="r")])
    assert [one.call_id for one in store.episodes.finder.find_requested("r", limit=9)] == [
        "c2",
        "c1",
    ]
    assert store.episodes.finder.find_requested("other", limit=9) == []


async def test_pages_follow_each_other_without_gap_or_repeat(store):
    for number in range(7):
        episode = records.episode(id=f"ep_{number}")
        call = records.call(id=f"c{number}", episode_id=episode.id, status=CallStatus.ERROR)
        await store.episodes.record(episode, [call], [None])
    seen, after = [], None
    while found := store.episodes.page(limit=3, after=after):
        seen += [row["id"] for row in found]
        after = found[-1]["id"]
    assert seen == [f"ep_{number}" for number in reversed(range(7))]
    assert found == []


async def test_an_ungraded_episode_has_no_outcome_rather_than_zero(store):
    await store.episodes.record(records.episode(), [records.call()], [None])
    assert store.episodes.outcome("ep_1") is None
    assert store.episodes.page(limit=1)[0]["outcome"] is None


def test_unknown_ids_are_not_found(store):
    with pytest.raises(NotFoundError, match="ep_x"):
        store.episodes.get("ep_x")
    with pytest.raises(NotFoundError, match="chatcmpl-x"):
        store.episodes.episode_of_call("chatcmpl-x")


def test_not_learnable_says_why():
    assert records.call().not_learnable_reason is None
    reasons = [
        records.call(learn=False),
        records.call(status=CallStatus.CANCELLED),
        records.call(completion_token_ids=None),
        records.call(sampler_logprobs=(-0.5,)),
    ]
    assert [c.not_learnable_reason for c in reasons] == [
        "learning_off",
        "cancelled",
        "no_token_ids",
        "no_logprobs",
    ]


def _grade(db, episode, value: float = 1.0) -> None:
    set_grades(db, episode, [grade(value)], outcome(value))
