"""Erasing from a real database: what goes and what stays."""

import pytest

from memory.erasure_scope import Scope
from memory.errors import InvalidRequestError, NotFoundError
from memory.grade_rows import set_grades
from memory.types import Grade, GradeKind, Outcome, TaskRole
from tests.memory.erasing import PLANTED
from tests.records import call, cycle, episode, task, version


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


async def imported(home, number: int, text: str = PLANTED) -> str:
    """Import a task, practise it, and let a version learn from that; return its id."""
    given = task(
        number,
        messages=({"role": "user", "content": f"about {text}"},),
        reference=f"reference {text}",
        grader_config={"entry": {"answer": f"entry {text}"}},
    )
    home.store.tasks.add([given])
    await home.practise(number, of=number, text=text)
    home.store.versions.add(version(number, sha256=f"{number}" * 64), [f"ep_practice_{number}"])
    return given.id


async def test_an_imported_task_goes_with_its_practice_and_what_learned_from_it_is_named(home):
    its, other = await imported(home, 1), await imported(home, 2, "something else")
    home.log(f"cannot grade entry {PLANTED}")
    assert home.eraser.erasure.plan(Scope(task=its))["counts"]["tasks"] == 1
    told = await home.erase(task=its)
    counted = {name: told["counts"][name] for name in ("tasks", "episodes", "calls", "grades")}
    assert counted == {"tasks": 1, "episodes": 1, "calls": 1, "grades": 1}
    assert [one.version for one in told["tainted"]] == ["denizen-000001"]
    assert told["files"].found == {} and home.files_with(PLANTED) == []
    assert [row["id"] for row in home.store.tasks.page(limit=9)] == [other]
    assert home.count("episodes") == 1
    [audit] = home.eraser.erasure.all()
    assert (audit["scope"], its in str(audit)) == ("task", False)
    with pytest.raises(NotFoundError, match=its):
        await home.erase(task=its)


async def test_an_erased_task_may_be_given_again_and_practised(home):
    its = await imported(home, 1)
    await home.erase(task=its)
    await home.practise(2, of=1)  # a cycle that still held it
    assert home.count("episodes") == 0
    home.store.tasks.add([task(1)])
    await home.practise(3, of=1)
    assert home.count("episodes") == 1
    assert home.count("erased_ids") == 2  # what was practised before


async def test_a_running_cycle_uses_a_task_that_is_named(home):
    cycles = home.store.cycles
    cycles.start(cycle())
    home.store.tasks.add([task(1), task(2)])
    cycles.set_tasks("cycle_1", {TaskRole.TRAIN: [task(1)]})
    assert cycles.uses("cycle_1", ["task_0001"])
    assert not cycles.uses("cycle_1", ["task_0002"])


async def test_a_skill_is_not_named_by_the_words_of_an_erased_task(home):
    def write(db) -> None:
        db.execute(
            """INSERT INTO skills (id, title, created_at, policy, key_terms, centroid_count)
                VALUES (1, 'zebras and more', '2026-01-01', 'learn', '["zebras"]', 0)"""
        )

    home.store.database.write(write)
    given = task(1, messages=({"role": "user", "content": "count zebras"},), skill_id=1)
    home.store.tasks.add([given])
    await home.erase(task=given.id)
    [skill] = home.store.database.read("SELECT title, key_terms FROM skills")
    assert skill == {"title": "skill 1", "key_terms": "[]"}
