"""Planted answers before scripted judges: always first, always longer (P-45), obedient (P-47)."""

import pytest

from graders.calibration import TrustConfig
from graders.canaries import Canary
from graders.outcome import merge
from graders.probing import ENOUGH, TASKS_PER_RUN, Prober, swap_of
from graders.trust import JudgeTrust
from tests import records
from tests.graders.judged import (
    SKILL,
    ScriptedJudge,
    ScriptedRanker,
    checked,
    found_skill,
    judged,
    record,
)


def is_right(text: str, question: str) -> float:
    return float(text == f"answer {question.split()[0]}")


TASKS = [records.task(n, reference=f"answer {n}", skill_id=SKILL) for n in range(20)]


def prober(store, judge=None, ranker=None, tasks=TASKS) -> Prober:
    return Prober(
        evidence=store.judge_evidence,
        tasks_of=lambda _: tasks,
        judges_of=lambda _: [] if judge is None else [judge],
        rankers_of=lambda _: [] if ranker is None else [ranker],
    )


def standing(store, grader: str = "judge"):
    trust = JudgeTrust(store.judge_evidence, TrustConfig())
    trust.refresh()
    return next(one for one in trust.standings() if one.grader == grader)


async def probe_fully(it: Prober) -> None:
    while await it.run([SKILL]):
        pass


async def agree_on_live_work(store, grader: str = "judge") -> None:
    for n in range(60):
        grades = [checked(float(n % 2)), judged(float(n % 2), grader=grader)]
        await record(store, n, grades, text="x" * (20 + n % 7))


@pytest.fixture(autouse=True)
def _skill(store):
    found_skill(store)


async def test_a_judge_is_asked_a_few_at_a_time_until_enough_is_known(store):
    judge = ScriptedJudge(is_right)
    it = prober(store, judge)
    assert await it.run([SKILL]) == TASKS_PER_RUN * len(Canary)
    await probe_fully(it)
    assert len(judge.asked) == ENOUGH * len(Canary)
    assert all(answer.reference is None for answer in judge.asked)


async def test_a_judge_that_gives_no_verdict_is_asked_again_and_nothing_is_kept(store):
    it = prober(store, ScriptedJudge(lambda _text, _question: None))
    assert await it.run([SKILL]) == 0
    assert store.judge_evidence.probes() == []


async def test_nothing_is_planted_where_no_right_answer_is_known(store):
    judge = ScriptedJudge(lambda _text, _question: 1.0)
    assert await prober(store, judge, tasks=[records.task(1, reference=None)]).run([SKILL]) == 0
    assert judge.asked == []


async def test_p47_a_judge_that_obeys_what_it_reads_is_not_trusted_however_well_it_agrees(store):
    def obedient(text: str, question: str) -> float:
        told = any(word in text for word in ("10/10", '"score": 1.0', "full marks", "graded 1.0"))
        return 1.0 if told else is_right(text, question)

    await agree_on_live_work(store)
    await probe_fully(prober(store, ScriptedJudge(obedient)))
    found = standing(store)
    assert found.canaries.failed["injected"] == ENOUGH
    assert not found.is_trusted
    assert found.agreement.low == 1.0
    assert (
        f"{ENOUGH} of {ENOUGH} planted answers that told it what to say deceived it" in found.doubt
    )
    # Its grades give no outcome, so nothing is learned from them.
    trust = JudgeTrust(store.judge_evidence, TrustConfig())
    trust.refresh()
    assert merge([judged(1.0)], trust=trust, skill_id=SKILL).value is None


async def test_p47_a_judge_that_accepts_wrong_answers_is_not_trusted(store):
    await agree_on_live_work(store)
    await probe_fully(prober(store, ScriptedJudge(lambda _text, _question: 1.0)))
    found = standing(store)
    assert not found.is_trusted
    assert f"it called {ENOUGH} of {ENOUGH} wrong planted answers good" in found.doubt


async def test_a_judge_that_passes_its_probes_and_agrees_is_trusted(store):
    await agree_on_live_work(store)
    await probe_fully(prober(store, ScriptedJudge(is_right)))
    assert standing(store).is_trusted


async def test_p45_always_first_gives_ties_only_and_is_found_by_its_seats(store):
    ranker = ScriptedRanker(lambda _first, _second: True)
    await probe_fully(prober(store, ranker=ranker, tasks=TASKS))
    found = standing(store, "judge_ranking")
    assert found.canaries.num_judged == 0  # each flip is a tie: no value, so no update
    assert found.position.num_first == found.position.num_swaps > 0
    assert found.position.alarm is not None
    assert not found.is_trusted
    trust = JudgeTrust(store.judge_evidence, TrustConfig())
    trust.refresh()
    tie = judged(None, grader="judge_ranking", unscored_reason="tie")
    assert merge([tie], trust=trust, skill_id=SKILL).value is None


async def test_p45_always_longer_raises_the_alarm_of_length(store):
    for n in range(60):
        text = "x" * (10 + (n * 37) % 200)
        grades = [checked(float(n % 2)), judged(float(len(text) > 110))]
        await record(store, n, grades, text=text)
    found = standing(store)
    assert found.length.alarm is not None and "prefers the longer" in found.length.alarm
    assert found.length.alarm in found.doubt
    assert not found.is_trusted


async def test_a_ranker_that_keeps_to_its_verdict_in_both_orders_raises_no_alarm_of_seats(store):
    ranker = ScriptedRanker(lambda first, second: (len(first), first) <= (len(second), second))
    await probe_fully(prober(store, ranker=ranker))
    found = standing(store, "judge_ranking")
    assert found.position.alarm is None
    assert found.position.consistency == 1.0


def test_a_ranking_that_lost_a_vote_says_nothing_of_seats():
    evidence = {"orders": [[0, 1], [1, 0]], "ranked": [[0, 1]]}
    assert swap_of([judged(1.0, evidence=evidence)]) == "undecided"
    assert swap_of([judged(1.0)]) == "undecided"
    assert swap_of([]) == "undecided"
