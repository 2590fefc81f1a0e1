"""Answers of known worth wait for a judge that lacks pairs, in few numbers, and no others."""

from typing import Any

import pytest

from graders.calibration import TrustConfig
from graders.judging import JudgeConfig
from graders.pairing import Pairing
from graders.trust import JudgeTrust
from memory.judge_queue import JudgeQueue
from memory.retention import delete_episodes
from memory.store import Store
from memory.types import EpisodeSource, GradeKind
from tests.graders.judged import SKILL, ScriptedJudge, checked, found_skill, judged, record

OTHER = SKILL + 1


@pytest.fixture
def store(tmp_path) -> Any:
    store = Store(tmp_path / "denizen.db")
    found_skill(store, SKILL)
    found_skill(store, OTHER)
    yield store
    store.close()


@pytest.fixture
def trust(store: Store) -> JudgeTrust:
    return JudgeTrust(store.judge_evidence, TrustConfig(min_pairs=10))


def pairing(store: Store, trust: JudgeTrust, **options: Any) -> Pairing:
    given: dict[str, Any] = {
        "evidence": store.judge_evidence,
        "queue": JudgeQueue(store.database),
        "trust": trust,
        "judge_of": lambda _: ScriptedJudge(lambda *_: 1.0),
        "skills_in_use": lambda: {SKILL},
        "answer_of": lambda episode_id: f"call of {episode_id}",
        "config": JudgeConfig(votes=1, max_calls_per_hour=100_000),
    }
    return Pairing(**given | options)


def waiting(store: Store) -> dict[str, str]:
    rows = store.database.read("SELECT episode_id, call_id FROM judge_queue")
    return {row["episode_id"]: row["call_id"] for row in rows}


async def test_what_a_check_or_a_person_graded_waits_for_the_judge(store, trust) -> None:
    graded = await record(store, 1, [checked(1.0)])
    rated = await record(store, 2, [checked(0.0, GradeKind.PERSON)])
    assert await pairing(store, trust).run() == 2
    assert waiting(store) == {graded: f"call of {graded}", rated: f"call of {rated}"}
    assert JudgeQueue(store.database).num_graded_waiting() == 2
    assert await pairing(store, trust).run() == 0  # they wait already


@pytest.mark.parametrize(
    ("grades", "fields"),
    [
        ([], {}),
        ([checked(1.0), judged(0.0)], {}),
        ([checked(1.0), judged(None)], {}),
        ([checked(1.0)], {"learn": False}),
        ([checked(1.0)], {"source": EpisodeSource.PRACTICE}),
        ([checked(1.0)], {"skill_id": OTHER}),
        ([checked(1.0)], {"skill_id": None}),
    ],
    ids=["ungraded", "judged", "judged-in-vain", "not-learned", "practice", "not-in-use", "none"],
)
async def test_others_do_not(store, trust, grades, fields) -> None:
    await record(store, 1, grades, **fields)
    assert await pairing(store, trust).run() == 0
    assert waiting(store) == {}


async def test_an_episode_without_an_answer_takes_no_others_place(store, trust) -> None:
    answered = await record(store, 1, [checked(1.0)])
    empty = await record(store, 2, [checked(1.0)])
    one_call = JudgeConfig(votes=1, max_calls_per_hour=1)
    answers = {answered: "c1", empty: None}
    assert await pairing(store, trust, answer_of=answers.get, config=one_call).run() == 1
    assert waiting(store) == {answered: "c1"}


async def test_only_half_of_the_calls_in_an_hour_are_taken_for_it(store, trust) -> None:
    for number in range(9):
        await record(store, number, [checked(1.0)])
    config = JudgeConfig(votes=3, max_calls_per_hour=1_000)
    part = pairing(store, trust, config=config)
    assert await part.run() == 2  # of three calls each, every minute: 360 an hour
    assert set(waiting(store)) == {"ep_0007", "ep_0008"}  # the newest
    assert await part.run() == 0  # until these are judged


async def test_the_skill_that_lacks_most_comes_first(store, trust) -> None:
    for number in range(9):
        await record(store, number, [checked(1.0), judged(1.0)])
        await record(store, 100 + number, [checked(1.0)])
        await record(store, 200 + number, [checked(1.0)], skill_id=OTHER)
    trust.refresh()
    config = JudgeConfig(votes=1, max_calls_per_hour=12 * 120)
    part = pairing(store, trust, skills_in_use=lambda: {SKILL, OTHER}, config=config)
    assert await part.run() == 12
    assert sorted(waiting(store)) == [
        *(f"ep_{number:04d}" for number in (106, 107, 108)),
        *(f"ep_{number:04d}" for number in range(200, 209)),
    ]


async def test_a_judge_that_has_enough_is_asked_no_more(store, trust) -> None:
    for number in range(40):
        await record(store, number, [checked(float(number % 2)), judged(float(number % 2))])
    fresh = [await record(store, number, [checked(1.0)]) for number in range(40, 43)]
    trust.refresh()
    assert await pairing(store, trust).run() == 0
    another = ScriptedJudge(lambda *_: 1.0)
    another.version = "2"  # type: ignore[misc]
    part = pairing(store, trust, judge_of=lambda _: another)
    assert await part.run() == 3
    assert set(waiting(store)) == set(fresh)


async def test_what_goes_while_it_is_chosen_does_not_stop_the_others(store, trust) -> None:
    stays, goes = [await record(store, number, [checked(1.0)]) for number in (1, 2)]

    def answer_of(episode_id: str) -> str:
        store.database.write(lambda db: delete_episodes(db, [goes]))
        return f"call of {episode_id}"

    await pairing(store, trust, answer_of=answer_of).run()
    assert waiting(store) == {stays: f"call of {stays}"}
