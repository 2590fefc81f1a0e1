"""Erasing from a real database: what goes and what stays."""

import pytest

from memory.erasure_scope import Scope
from memory.errors import InvalidRequestError, NotFoundError
from memory.grade_rows import set_grades
from memory.types import Grade, GradeKind, Outcome
from tests.records import call, episode


async def test_an_episode_goes_with_all_that_hangs_on_it(home):
    await home.record(1)
    await home.record(2, "another text")
    told = await home.erase(episode="ep_1")
    assert told["counts"] == {
        "episodes": 1,
        "calls": 2,
        "feedback": 1,
        "grades": 1,
        "judge_probes": 0,
        "vectors": 1,
        "tasks": 1,
    }
    for table in ("episodes", "feedback", "grades", "vectors", "tasks"):
        assert home.count(table) == 1, table
    assert home.forgotten == {"ep_1"}
    assert [one.id for one in home.store.episodes.calls("ep_2")] == ["c2", "c2b"]


async def test_an_answer_that_ends_after_the_erasure_is_not_recorded(home):
    its = await home.record(1)
    await home.erase(episode=its)
    late = call(id="c_late", episode_id=its)
    await home.store.episodes.record(episode(id=its), [late], [None])
    assert home.count("episodes") == home.count("calls") == 0
    with pytest.raises(NotFoundError):
        home.store.episodes.get(its)


async def test_practice_on_an_erased_task_goes_and_does_not_come_back(home):
    await home.record(1)
    await home.practise(1, of=1)
    told = await home.erase(episode="ep_1")
    assert told["counts"]["episodes"] == 2
    await home.practise(2, of=1)  # a cycle that runs still holds the task
    assert home.count("episodes") == home.count("calls") == home.count("grades") == 0


async def test_turns_taken_again_at_an_erased_prefix_go_and_do_not_come_back(home):
    its = await home.record(1, session="s-1")
    await home.record(2)
    await home.take_again(1, of=its)
    await home.take_again(2, of="ep_2")
    told = await home.erase(session="s-1")
    assert told["counts"]["episodes"] == 2
    await home.take_again(3, of=its)  # it was on its way
    left = {row["id"] for row in home.store.episodes.page(limit=9)}
    assert left == {"ep_2", "ep_practice_2"}


async def test_grades_worked_out_meanwhile_are_not_kept(home):
    await home.record(1)
    its = home.store.episodes.get("ep_1")
    await home.erase(episode="ep_1")
    grade = Grade(kind=GradeKind.PERSON, grader="user", version="1", value=1)
    outcome = Outcome(value=1.0, provenance=None, num_grades=1)
    await home.store.database.write_async(lambda db: set_grades(db, its, [grade], outcome))
    assert home.count("grades") == 0


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        ({"session": "s1"}, {"ep_3", "ep_4"}),
        ({"session": "s1", "tenant": "acme"}, {"ep_1", "ep_3", "ep_4"}),
        ({"user": "ann"}, {"ep_2", "ep_4"}),
        ({"tenant": "acme"}, {"ep_1", "ep_3"}),
    ],
)
async def test_a_scope_takes_its_own_episodes_and_no_others(home, scope, left):
    await home.record(1, "a", session="s1", user="ann")
    await home.record(2, "b", session="s1", tenant="acme")
    await home.record(3, "c", session="s2", user="ann")
    await home.record(4, "d", session="s2", tenant="acme")
    told = await home.erase(**scope)
    rows = home.store.database.read("SELECT id FROM episodes")
    assert {row["id"] for row in rows} == left
    assert told["counts"]["episodes"] == 4 - len(left)


async def test_what_is_not_there_is_said(home):
    with pytest.raises(NotFoundError):
        await home.erase(episode="ep_none")
    assert (await home.erase(session="none"))["counts"] == {}


@pytest.mark.parametrize(
    "scope", [{}, {"episode": "e", "session": "s"}, {"episode": "e", "tenant": "t"}]
)
def test_a_scope_names_one_thing(scope):
    with pytest.raises(InvalidRequestError):
        Scope(**scope)


async def test_an_audit_row_without_content_stays(home):
    await home.record(1, session="secret-session")
    await home.erase(session="secret-session")
    [row] = home.eraser.erasure.all()
    assert (row["actor"], row["scope"], row["counts"]["calls"]) == ("test", "session", 2)
    assert row["ended_at"] >= row["created_at"]
    assert "secret-session" not in str(row)
    assert row["scope_sha256"] == Scope(session="secret-session").sha256


async def test_a_plan_counts_and_changes_nothing(home):
    await home.record(1)
    plan = home.eraser.erasure.plan(Scope(episode="ep_1"))
    assert plan["counts"]["calls"] == 2
    assert home.count("erasures") == 0
    assert (await home.erase(episode="ep_1"))["counts"] == plan["counts"]


async def test_an_episode_that_is_not_recorded_yet_never_will_be(home):
    home.running = {"ep_1"}
    told = await home.erase(session="s1")
    assert told["counts"].get("episodes", 0) == 0
    await home.store.episodes.record(episode(session="s1"), [call()], [None])
    assert home.count("episodes") == home.count("calls") == 0
    with pytest.raises(NotFoundError):
        home.running = set()
        await home.erase(episode="ep_1")
