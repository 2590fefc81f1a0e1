"""How a call descends from texts that it quotes: side calls, sub-agents, compactions."""

from agent.placement import Asked
from agent.quotes import QuoteIndex, Source, answered_texts, asked_texts
from memory.types import Edge, Message
from tests.agent.harness import ANSWER, SUBTASK, SUMMARY, TASK, delegating, said, system, user


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


async def test_a_summary_of_which_only_a_part_is_kept_is_still_a_compaction(harness):
    opening = [system("You build things."), user(TASK)]
    _, begun = await harness.ask(opening, said(ANSWER))
    thoughtful = f"<analysis>Let me look at each message.</analysis>\n<summary>{SUMMARY}</summary>"
    await harness.ask([*opening, said(ANSWER), user("Sum up.")], said(thoughtful))
    compacted = [opening[0], user(f"This goes on from an earlier talk.\nSummary:\n{SUMMARY}")]
    _, place = await harness.ask(compacted, said("On it."))
    assert (place.episode.id, place.edge) == (begun.episode.id, Edge.COMPACTION)


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


async def test_a_history_in_which_an_old_tool_result_was_cleared_is_a_compaction(harness):
    def result(text: str) -> Message:
        return {"role": "tool", "tool_call_id": "t1", "content": text}

    history = [user(TASK), delegating(SUBTASK), result("a very long log")]
    _, begun = await harness.ask(history[:1], history[1])
    _, _ = await harness.ask(history, said(ANSWER))
    cleared = [*history[:2], result("[cleared]"), said(ANSWER), user("Go on.")]
    _, place = await harness.ask(cleared, said("Done."))
    assert (place.episode.id, place.edge) == (begun.episode.id, Edge.COMPACTION)


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
