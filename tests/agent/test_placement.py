"""In which episode a call is recorded: sessions, users, speakers, and what runs or was erased."""

import threading

import pytest

from agent.placement import Asked
from memory.erasure_scope import Scope
from memory.privacy import Privacy
from memory.types import Edge
from tests import records
from tests.agent.harness import ANSWER, SUBTASK, SUMMARY, TASK, Harness, delegating, said, user


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
    checked = Privacy.checked

    def noted(privacy, request):
        cleaned_in.add(threading.current_thread() is threading.main_thread())
        return checked(privacy, request)

    monkeypatch.setattr(Privacy, "checked", noted)
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


async def test_an_answer_that_another_gave_to_the_same_question_is_not_continued(harness):
    _, begun = await harness.ask([user(TASK)], said(ANSWER))
    foreign = [user(TASK), said("Ask the people who wrote the parser."), user("Why?")]
    _, place = await harness.ask(foreign, None)
    assert place.episode.id != begun.episode.id


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


async def test_what_was_erased_is_not_joined(store, harness):
    _, begun = await harness.ask([user(TASK)], said(ANSWER))
    for table, column in (("calls", "episode_id"), ("episodes", "id")):
        sql = f"DELETE FROM {table} WHERE {column} = ?"
        store.database.write(lambda db, sql=sql: db.execute(sql, (begun.episode.id,)))
    _, place = await harness.ask([user(f"Title for: {TASK}")], said("x"))
    assert place.edge is None


@pytest.mark.parametrize("size", [100, 200_000])
async def test_a_request_that_was_looked_through_early_is_stored_as_clean(store, harness, size):
    request = {"model": "denizen", "messages": [user("word " * (size // 5) + "bob@example.com")]}
    place = harness.placement.place(Asked(messages=request["messages"], request=request))
    assert (place.checked is None) == (size > 100)
    call = records.call(episode_id=place.episode.id, request=request)
    await harness.placement.keep(place, [call]).written
    stored = store.episodes.call(call.id)
    assert stored.request["messages"][0]["content"].endswith("]")
    assert stored.withheld == "redacted"
