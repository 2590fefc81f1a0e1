"""How a call descends from another that has the same messages, or the same request."""

import pytest

from agent.placement import Asked
from memory.types import CallStatus, Edge
from tests.agent.harness import ANSWER, SUBTASK, TASK, delegating, said, system, user


async def test_messages_and_answer_are_continued(harness):
    first, begun = await harness.ask([user(TASK)], said(ANSWER))
    _, place = await harness.ask([user(TASK), said(ANSWER), user("Go on.")], said("Done."))
    assert begun.edge is None
    assert (place.episode.id, place.parent_id, place.edge) == (
        begun.episode.id,
        first,
        Edge.CONTINUATION,
    )


async def test_an_equal_beginning_with_another_end_is_a_fork(harness):
    first, begun = await harness.ask([user(TASK)], said(ANSWER))
    history = [user(TASK), said(ANSWER)]
    await harness.ask([*history, user("Go on.")], said("Done."))
    _, place = await harness.ask([*history, user("Stop here.")], said("Stopped."))
    assert (place.parent_id, place.edge) == (first, Edge.FORK)
    assert place.episode.id == begun.episode.id


async def test_a_call_that_the_client_names_is_followed_or_forked(store, harness):
    first, begun = await harness.ask([user(TASK)], said(ANSWER))
    [named] = store.episodes.calls(begun.episode.id)
    places = [
        (await harness.ask([user(f"Way {n}.")], said("x"), continues=named))[1] for n in range(2)
    ]
    assert [place.parent_id for place in places] == [first, first]
    assert [place.edge for place in places] == [Edge.CONTINUATION, Edge.FORK]


async def test_a_fork_is_seen_while_the_other_branch_still_runs(harness):
    await harness.ask([user(TASK)], said(ANSWER))
    history = [user(TASK), said(ANSWER)]
    harness.placement.place(Asked(messages=[*history, user("Go on.")]))
    assert harness.placement.place(Asked(messages=[*history, user("Stop.")])).edge is Edge.FORK


async def test_a_repeated_request_is_a_sibling(harness):
    first, _ = await harness.ask([user(TASK)], said(ANSWER))
    again = [user(TASK), said(ANSWER), user("Go on.")]
    await harness.ask(again, said("Done."))
    _, place = await harness.ask(again, said("Finished."))
    assert (place.parent_id, place.edge) == (first, Edge.RETRY)


@pytest.mark.parametrize("status", [CallStatus.ERROR, CallStatus.CANCELLED])
async def test_a_first_request_that_failed_is_tried_again_in_its_episode(harness, status):
    _, failed = await harness.ask([user(TASK)], None, status)
    _, place = await harness.ask([user(TASK)], said(ANSWER))
    assert (place.episode.id, place.parent_id, place.edge) == (
        failed.episode.id,
        None,
        Edge.RETRY,
    )


@pytest.mark.parametrize("told", [{"is_retry": True}, {"retry_key": "k"}, {"session": "s"}])
async def test_a_retry_that_is_told_is_one_even_when_the_first_was_answered(harness, told):
    first = {"retry_key": told["retry_key"]} if "retry_key" in told else {}
    first |= {"session": "s"} if "session" in told else {}
    _, answered = await harness.ask([user(TASK)], said(ANSWER), **first)
    _, place = await harness.ask([user(TASK)], said(ANSWER), **told)
    assert (place.episode.id, place.edge) == (answered.episode.id, Edge.RETRY)


async def test_a_retry_that_is_told_joins_an_attempt_that_still_runs(harness):
    running = harness.placement.place(Asked(messages=[user(TASK)]))
    retry = harness.placement.place(Asked(messages=[user(TASK)], is_retry=True))
    assert (retry.episode.id, retry.edge) == (running.episode.id, Edge.RETRY)


async def test_a_system_prompt_that_is_written_anew_continues(harness):
    first, begun = await harness.ask([system("It is 9:00."), user(TASK)], said(ANSWER))
    later = [system("It is 9:05."), user(TASK), said(ANSWER), user("Go on.")]
    _, place = await harness.ask(later, said("Done."))
    assert (place.parent_id, place.edge) == (first, Edge.RERENDERED)
    assert place.episode.id == begun.episode.id


@pytest.mark.parametrize(
    ("answer", "sent_back"),
    [
        (said(ANSWER), said(f"{ANSWER}\nCalling tools:\n[{{'id': 'call_1'}}]")),
        (delegating(SUBTASK), said("Calling tools:\n[{'name': 'agent'}]")),
    ],
)
async def test_an_answer_that_comes_back_with_more_behind_it_is_continued(
    harness, answer, sent_back
):
    first, begun = await harness.ask([user(TASK)], answer)
    history = [user(TASK), sent_back, user("Observation: done")]
    second, place = await harness.ask(history, said("Next."))
    assert place.episode.id == begun.episode.id
    assert (place.parent_id, place.edge) == (first, Edge.RERENDERED)
    history += [said("Next.\nCalling tools: []"), user("Observation: 10")]
    _, place = await harness.ask(history, said("I know it."))
    assert (place.parent_id, place.edge) == (second, Edge.RERENDERED)


async def test_an_answer_that_was_broken_off_is_gone_on_with(
    harness,
):
    _, broken = await harness.ask([user(TASK)], said("The nightly"), CallStatus.CANCELLED)
    kept = [user(TASK), said("The nightly"), user("Shorter, please.")]
    _, place = await harness.ask(kept, said("Fine."))
    assert (place.episode.id, place.edge) == (broken.episode.id, Edge.CONTINUATION)
