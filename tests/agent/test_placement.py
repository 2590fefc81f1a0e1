import itertools
import threading
from typing import Any

import pytest

from agent.placement import Asked, Place, Placement
from agent.quotes import QuoteIndex, Source, answered_texts, asked_texts
from agent.running_requests import RunningRequests
from memory.erasure_scope import Scope
from memory.privacy import Privacy
from memory.types import CallStatus, Edge, Message, utc_now
from tests import records

TASK = "Please find out why the nightly build of the parser fails since Tuesday."
ANSWER = "The nightly build fails because the new grammar file is missing from the archive."
SUMMARY = (
    "The user wants to know why the nightly build fails. We found that the grammar file is not "
    "packed. The next step is to add it to the manifest and to run the build again."
)
SUBTASK = "Read the build log of last Tuesday and report the first error that you find in it."
numbers = itertools.count()


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def delegating(text: str) -> Message:
    function = {"name": "agent", "arguments": f'{{"prompt": "{text}"}}'}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "t1", "type": "function", "function": function}],
    }


class Harness:
    """Asks and lets answer, without an engine."""

    def __init__(self, store: Any) -> None:
        self.placement = Placement(store.episodes)

    async def ask(
        self,
        messages: list[Message],
        answer: Message | None,
        status: CallStatus = CallStatus.OK,
        **fields: Any,
    ) -> tuple[str, Place]:
        """Return the call's id and its place."""
        place = self.placement.place(Asked(messages=messages, **fields))
        return await self.answer(place, answer, status), place

    async def answer(
        self, place: Place, answer: Message | None, status: CallStatus = CallStatus.OK
    ) -> str:
        call = records.call(
            id=f"call-{next(numbers)}",
            created_at=utc_now(),
            episode_id=place.episode.id,
            request={"messages": place.asked.messages},
            message=answer,
            status=status,
            parent_id=place.parent_id,
            edge=place.edge,
        )
        await self.placement.keep(place, [call])
        return call.id


@pytest.fixture
def harness(store) -> Harness:
    return Harness(store)


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


async def test_each_user_of_a_session_has_episodes_of_their_own(store, harness):
    ids = []
    for name, text in (("ann", TASK), ("bob", SUBTASK), ("ann", SUMMARY), ("bob", TASK)):
        _, place = await harness.ask([user(text)], said("x"), session="s", user=name)
        assert (place.episode.user, place.asked.session) == (name, "s")
        ids.append(place.episode.id)
    assert ids[0] == ids[2] != ids[1] == ids[3]
    _, nobody = await harness.ask([user("Go on.")], said("x"), session="s")
    assert nobody.episode.id == ids[1], "who names no user joins the session's newest episode"


async def test_each_user_of_a_session_is_told_apart_while_both_are_answered(harness):
    places = [
        harness.placement.place(Asked(messages=[user(text)], session="s", user=name))
        for name, text in (("ann", TASK), ("bob", SUBTASK), ("ann", SUMMARY))
    ]
    ids = [place.episode.id for place in places]
    assert ids[0] == ids[2] != ids[1]


async def test_an_answer_to_another_user_is_not_continued_in_their_episode(store, harness):
    _, begun = await harness.ask([user(TASK)], said(ANSWER), user="ann")
    [named] = store.episodes.calls(begun.episode.id)
    _, own = await harness.ask([user("Go on.")], said("x"), continues=named)
    _, theirs = await harness.ask([user("Go on.")], said("x"), continues=named, user="bob")
    assert own.episode.id == begun.episode.id != theirs.episode.id
    assert theirs.episode.user == "bob"


@pytest.mark.parametrize("reference", ["plain", "bob@example.com", "4242 4242 4242 4242"])
async def test_a_session_goes_on_with_a_reference_of_which_a_mark_is_stored(store, reference):
    before = Harness(store)
    told = {"session": "s", "reference": reference}
    _, first = await before.ask([user(TASK)], said("x"), **told)
    _, second = await before.ask([user(SUBTASK)], said("x"), **told)
    after_restart = Harness(store)
    _, third = await after_restart.ask([user(SUMMARY)], said("x"), **told)
    assert first.episode.id == second.episode.id == third.episode.id
    _, other = await after_restart.ask([user("x")], said("x"), session="s", reference="no")
    assert other.episode.id != first.episode.id


async def test_a_long_text_is_cleaned_beside_the_event_loop(store, monkeypatch):
    cleaned_in = set()
    kept = Privacy.kept

    def noted(privacy, episode, calls):
        cleaned_in.add(threading.current_thread() is threading.main_thread())
        return kept(privacy, episode, calls)

    monkeypatch.setattr(Privacy, "kept", noted)
    harness = Harness(store)
    for size, in_main_thread in ((100, True), (200_000, False)):
        cleaned_in.clear()
        text = "word " * (size // 5) + "bob@example.com"
        id, _ = await harness.ask([user(text)], said("x"))
        assert cleaned_in == {in_main_thread}
        assert store.episodes.call(id).request["messages"][0]["content"].endswith("]")


async def test_what_runs_within_a_scope_is_known(harness):
    first = harness.placement.place(Asked(messages=[user(TASK)], session="s", user="ann"))
    acme = harness.placement.place(Asked(messages=[user(TASK)], session="s", tenant="acme"))
    running = harness.placement.running
    assert running(Scope(session="s")) == {first.episode.id, acme.episode.id}
    assert running(Scope(session="s", tenant="acme")) == {acme.episode.id}
    assert running(Scope(user="ann")) == running(Scope(episode=first.episode.id))
    assert running(Scope(user="ann")) == {first.episode.id}
    assert running(Scope(tenant="bolt")) == set()
    harness.placement.forget([first.episode.id])
    assert running(Scope(session="s")) == {acme.episode.id}


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


async def test_two_speakers_with_the_same_first_words_stay_apart(harness):
    _, ann = await harness.ask([user(TASK)], said(ANSWER))
    _, bob = await harness.ask([user(TASK)], said("I have no idea."))
    _, more_of_ann = await harness.ask([user(TASK), said(ANSWER), user("Go on.")], said("x"))
    bobs = [user(TASK), said("I have no idea."), user("Go on.")]
    _, more_of_bob = await harness.ask(bobs, said("y"))
    assert ann.episode.id == more_of_ann.episode.id
    assert bob.episode.id == more_of_bob.episode.id
    assert ann.episode.id != bob.episode.id


async def test_speakers_who_even_got_the_same_answer_each_keep_one_conversation(harness):
    begun = {(await harness.ask([user(TASK)], said(ANSWER)))[1].episode.id for _ in range(3)}
    history = [user(TASK), said(ANSWER)]
    told = [await harness.ask([*history, user(f"Way {n}.")], said("x")) for n in range(3)]
    assert {place.episode.id for _, place in told} == begun
    assert {place.edge for _, place in told} == {Edge.CONTINUATION}


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


async def test_an_answer_that_another_gave_to_the_same_question_is_not_continued(harness):
    _, begun = await harness.ask([user(TASK)], said(ANSWER))
    foreign = [user(TASK), said("Ask the people who wrote the parser."), user("Why?")]
    _, place = await harness.ask(foreign, None)
    assert place.episode.id != begun.episode.id


async def test_a_title_belongs_to_the_conversation_that_it_quotes(harness):
    first, begun = await harness.ask([user(TASK)], said(ANSWER))
    await harness.ask([user("How is the weather in the mountains today?")], said("Fine."))
    title = f"Write a title for this chat.\n<chat>\nUSER: {TASK}\nASSISTANT: {ANSWER}\n</chat>"
    _, place = await harness.ask([user(title)], said("Build failure"))
    assert (place.episode.id, place.parent_id, place.edge) == (
        begun.episode.id,
        first,
        Edge.SIDE_CALL,
    )


async def test_a_title_that_is_asked_for_beside_the_first_answer_finds_its_conversation(harness):
    running = harness.placement.place(Asked(messages=[user(TASK)]))
    title = harness.placement.place(Asked(messages=[user(f"Title for: {TASK}")]))
    assert (title.episode.id, title.edge) == (running.episode.id, Edge.SIDE_CALL)


async def test_each_of_two_equal_conversations_gets_one_title(harness):
    begun = {(await harness.ask([user(TASK)], said(ANSWER)))[1].episode.id for _ in range(2)}
    titles = [await harness.ask([user(f"Title for: {TASK}")], said("Build")) for _ in range(2)]
    assert {place.episode.id for _, place in titles} == begun


async def test_a_history_replaced_by_its_summary_is_a_compaction(harness):
    opening = [system("You build things."), user(TASK)]
    _, begun = await harness.ask(opening, said(ANSWER))
    asking = [*opening, said(ANSWER), user("Sum up what was done so far.")]
    summing, _ = await harness.ask(asking, said(SUMMARY))
    compacted = [opening[0], user(f"The story so far:\n\n{SUMMARY}\n\nGo on from here.")]
    _, place = await harness.ask(compacted, said("On it."))
    assert (place.episode.id, place.parent_id, place.edge) == (
        begun.episode.id,
        summing,
        Edge.COMPACTION,
    )


async def test_a_summary_made_by_a_side_call_joins_compaction_and_conversation(harness):
    _, begun = await harness.ask([user(TASK)], said(ANSWER))
    asked = f"Summarise this conversation.\nuser: {TASK}\nassistant: {ANSWER}"
    summing, side = await harness.ask([system("You sum up."), user(asked)], said(SUMMARY))
    _, place = await harness.ask([user(f"Summary: {SUMMARY}"), user("Go on.")], said("On it."))
    assert side.edge is Edge.SIDE_CALL
    assert (place.parent_id, place.edge) == (summing, Edge.COMPACTION)
    assert place.episode.id == begun.episode.id


async def test_a_history_whose_middle_was_dropped_is_a_compaction(harness):
    history, ids = [user(TASK)], []
    for number in range(3):
        answer = said(f"{ANSWER} That is finding number {number} of this search.")
        call, begun = await harness.ask(history, answer)
        ids.append(call)
        history = [*history, answer, user(f"Look further, round {number}.")]
    shortened = [user(TASK), *history[-2:]]
    _, place = await harness.ask(shortened, said("On it."))
    assert (place.episode.id, place.parent_id, place.edge) == (
        begun.episode.id,
        ids[-1],
        Edge.COMPACTION,
    )


async def test_a_sub_agent_hangs_below_the_call_that_started_it(harness):
    call, begun = await harness.ask([system("Lead."), user(TASK)], delegating(SUBTASK))
    sub = [system("You read logs."), user(SUBTASK)]
    sub_call, place = await harness.ask(sub, said("Error in line 3 of the log."))
    assert (place.episode.id, place.parent_id, place.edge) == (
        begun.episode.id,
        call,
        Edge.SUB_AGENT,
    )
    more = [*sub, said("Error in line 3 of the log."), user("Which file?")]
    _, inner = await harness.ask(more, said("parser.py"))
    assert (inner.episode.id, inner.parent_id) == (begun.episode.id, sub_call)


async def test_a_sub_agent_that_is_asked_again_is_a_retry_beside_the_first(harness):
    call, _ = await harness.ask([user(TASK)], delegating(SUBTASK))
    await harness.ask([user(SUBTASK)], said("Error in line 3 of the log."))
    _, place = await harness.ask([user(SUBTASK)], said("Error in line 4 of the log."))
    assert (place.parent_id, place.edge) == (call, Edge.RETRY)


async def test_tasks_of_one_template_are_conversations_of_their_own(harness):
    places = [
        (await harness.ask([user(f"How often does the letter e occur in the word {w}?")], said(w)))[
            1
        ]
        for w in ("tree", "beech", "elm", "tree")
    ]
    assert len({place.episode.id for place in places}) == 4


async def test_few_shot_examples_join_nothing(harness):
    shots = [user("What is the capital of France, in one word?"), said("It is Paris, of course.")]
    places = [
        (await harness.ask([*shots, user(f"And of {c}?")], said(c)))[1] for c in ("Peru", "Chad")
    ]
    assert places[0].episode.id != places[1].episode.id


@pytest.mark.parametrize("named", [{"session": "s"}, {"user": "ann"}])
async def test_nothing_joins_speakers_who_are_named(harness, named):
    _, one = await harness.ask([user(TASK)], said(ANSWER))
    _, other = await harness.ask([user(TASK), said(ANSWER), user("Go on.")], said("x"), **named)
    _, title = await harness.ask([user(f"Title for: {TASK}")], said("x"), user="bob")
    assert len({one.episode.id, other.episode.id, title.episode.id}) == 3


async def test_unrelated_calls_of_a_named_session_are_one_episode(harness):
    _, one = await harness.ask([user("red")], said("rot"), session="s")
    _, other = await harness.ask([user("blue")], said("blau"), session="s")
    assert (other.episode.id, other.edge) == (one.episode.id, Edge.SESSION)


async def test_what_is_not_recorded_is_not_found_either(harness):
    harness.placement.place(Asked(messages=[user(TASK)], record=False))
    assert harness.placement.place(Asked(messages=[user(f"Title for: {TASK}")])).edge is None


async def test_conversations_are_found_again_after_a_restart(store, harness):
    call, begun = await harness.ask([user(TASK)], delegating(SUBTASK))
    restarted = Harness(store)
    _, sub = await restarted.ask([user(SUBTASK)], said("Line 3."))
    history = [user(TASK), delegating(SUBTASK), {"role": "tool", "content": "Line 3."}]
    _, more = await restarted.ask(history, said("x"))
    assert (sub.parent_id, sub.edge) == (call, Edge.SUB_AGENT)
    assert (more.parent_id, more.edge) == (call, Edge.CONTINUATION)
    assert {sub.episode.id, more.episode.id} == {begun.episode.id}


def test_the_index_of_texts_forgets_the_oldest_and_leaves_nothing_behind():
    index = QuoteIndex(max_calls=2)
    for number in range(5):
        source = Source(episode_id=f"ep_{number}", scope="", system="", edge=None)
        texts = [*asked_texts([user(f"{TASK} {number}")]), *answered_texts(said(ANSWER))]
        index.add(source, texts)
    asked = [user(f"Title: {TASK} {number}") for number in range(5)]
    found = {hit.source.episode_id for hit in index.find(asked, scope="")}
    assert found == {"ep_3", "ep_4"}
    assert len(index.find([user(f"Sum up: {ANSWER}")], scope="")) == 2


def test_running_requests_that_never_end_do_not_pile_up(harness):
    running = RunningRequests(max_places=2)
    places = [
        harness.placement.place(Asked(messages=[user(f"{n}")], session=f"s{n}")) for n in range(4)
    ]
    for place in places:
        running.add(place)
    assert [running.in_session(f"s{n}") is not None for n in range(4)] == [False, False, True, True]
    running.discard(places[3])
    assert running.attempt(places[3].keys) is None


async def test_a_history_in_which_an_old_tool_result_was_cleared_is_a_compaction(harness):
    def result(text: str) -> Message:
        return {"role": "tool", "tool_call_id": "t1", "content": text}

    history = [user(TASK), delegating(SUBTASK), result("a very long log")]
    _, begun = await harness.ask(history[:1], history[1])
    _, _ = await harness.ask(history, said(ANSWER))
    cleared = [*history[:2], result("[cleared]"), said(ANSWER), user("Go on.")]
    _, place = await harness.ask(cleared, said("Done."))
    assert (place.episode.id, place.edge) == (begun.episode.id, Edge.COMPACTION)


async def test_a_summary_of_which_only_a_part_is_kept_is_still_a_compaction(harness):
    opening = [system("You build things."), user(TASK)]
    _, begun = await harness.ask(opening, said(ANSWER))
    thoughtful = f"<analysis>Let me look at each message.</analysis>\n<summary>{SUMMARY}</summary>"
    await harness.ask([*opening, said(ANSWER), user("Sum up.")], said(thoughtful))
    compacted = [opening[0], user(f"This goes on from an earlier talk.\nSummary:\n{SUMMARY}")]
    _, place = await harness.ask(compacted, said("On it."))
    assert (place.episode.id, place.edge) == (begun.episode.id, Edge.COMPACTION)


async def test_an_answer_that_was_broken_off_is_gone_on_with(
    harness,
):
    _, broken = await harness.ask([user(TASK)], said("The nightly"), CallStatus.CANCELLED)
    kept = [user(TASK), said("The nightly"), user("Shorter, please.")]
    _, place = await harness.ask(kept, said("Fine."))
    assert (place.episode.id, place.edge) == (broken.episode.id, Edge.CONTINUATION)


async def test_what_was_erased_is_not_joined(store, harness):
    _, begun = await harness.ask([user(TASK)], said(ANSWER))
    for table, column in (("calls", "episode_id"), ("episodes", "id")):
        sql = f"DELETE FROM {table} WHERE {column} = ?"
        store.database.write(lambda db, sql=sql: db.execute(sql, (begun.episode.id,)))
    _, place = await harness.ask([user(f"Title for: {TASK}")], said("x"))
    assert place.edge is None
