"""Which answers wait for a judge, and by what skills are judged."""

import pytest

from memory import judge_queue
from memory.errors import ConflictError
from memory.grade_rows import set_grades, set_judged
from memory.judge_queue import JudgeQueue, Waiting
from memory.rubric_store import RubricStore
from memory.types import Grade, GradeKind, Outcome, SkillPolicy
from tests import records


def judged(value: float | None = 0.7, call_id: str = "c1", grader: str = "judge") -> Grade:
    reason = None if value is not None else "judge_timeout"
    evidence = {"call_id": call_id}
    return Grade(
        kind=GradeKind.JUDGE,
        grader=grader,
        version="1",
        value=value,
        unscored_reason=reason,
        evidence=evidence,
    )


def checked(value: float = 1.0) -> Grade:
    return Grade(kind=GradeKind.CHECK, grader="exact", version="1", value=value)


@pytest.fixture
async def episode(store):
    await store.episodes.record(records.episode(), [records.call(id="c1")], [None])
    return store.episodes.get("ep_1")


async def wish(store, call_id: str | None, episode_id: str = "ep_1") -> None:
    await store.database.write_async(lambda db: judge_queue.wish(db, episode_id, call_id))


async def waiting(store) -> list[Waiting]:
    return JudgeQueue(store.database).due(10)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_queue, "PATIENCE_S", 0.0)


async def test_an_answer_waits_until_its_skill_was_looked_for(store, episode, monkeypatch) -> None:
    monkeypatch.setattr(judge_queue, "PATIENCE_S", 60.0)
    await wish(store, "c1")
    assert await waiting(store) == []
    row = ("ep_1", "hash", "empty text")
    sql = "INSERT INTO vectors (episode_id, embedder, missing_reason) VALUES (?, ?, ?)"
    await store.database.write_async(lambda db: db.execute(sql, row))
    assert len(await waiting(store)) == 1


async def test_an_answer_waits_once_until_it_is_done(store, episode) -> None:
    await wish(store, "c1")
    await wish(store, "c1")
    [one] = await waiting(store)
    assert (one.episode_id, one.call_id, one.num_tries) == ("ep_1", "c1", 0)
    await store.database.write_async(lambda db: judge_queue.done(db, one))
    assert await waiting(store) == []


async def test_an_answer_that_was_judged_does_not_wait_again(store, episode) -> None:
    await store.database.write_async(lambda db: set_judged(db, "ep_1", judged()))
    await wish(store, "c1")
    assert await waiting(store) == []
    await wish(store, "c2")  # the conversation went on
    assert [one.call_id for one in await waiting(store)] == ["c2"]


async def test_a_later_answer_takes_the_place_of_the_one_that_waits(store, episode) -> None:
    await wish(store, "c1")
    [first] = await waiting(store)
    await store.database.write_async(lambda db: judge_queue.postpone(db, first, -1.0))
    await wish(store, "c2")
    await store.database.write_async(lambda db: judge_queue.done(db, first))
    [one] = await waiting(store)
    assert (one.call_id, one.num_tries) == ("c2", 0)


async def test_what_is_put_off_waits_for_its_time(store, episode) -> None:
    await wish(store, "c1")
    [one] = await waiting(store)
    await store.database.write_async(lambda db: judge_queue.postpone(db, one, 60.0))
    assert await waiting(store) == []
    assert JudgeQueue(store.database).num_waiting() == 1
    await wish(store, "c1")  # graded again meanwhile: it still waits for its time
    assert await waiting(store) == []


async def test_no_wish_takes_it_out(store, episode) -> None:
    await wish(store, "c1")
    await wish(store, None)
    assert JudgeQueue(store.database).num_waiting() == 0


async def test_an_erased_episode_does_not_wait_and_cannot_come_back(store, episode) -> None:
    await wish(store, "c1")

    def erase(db) -> None:
        db.execute("""INSERT INTO erasures VALUES ('e', '', NULL, '', '', '', '{}', '[]')""")
        db.execute("INSERT INTO erased_ids VALUES ('ep_1', 'e')")
        db.execute("DELETE FROM calls")
        db.execute("DELETE FROM episodes")

    await store.database.write_async(erase)
    assert JudgeQueue(store.database).num_waiting() == 0
    await wish(store, "c1")
    await store.database.write_async(lambda db: set_judged(db, "ep_1", judged()))
    assert JudgeQueue(store.database).num_waiting() == 0
    assert store.database.read("SELECT * FROM grades") == []


async def test_a_judges_grade_stays_while_checks_are_graded_again(store, episode) -> None:
    await store.database.write_async(lambda db: set_judged(db, "ep_1", judged(0.2)))
    opened = store.episodes.get("ep_1")
    assert opened.revision == episode.revision + 1
    outcome = Outcome(value=1.0, provenance=GradeKind.CHECK, num_grades=1)
    for _ in range(2):
        await store.database.write_async(lambda db: set_grades(db, opened, [checked()], outcome))
    in_force = store.episodes.grades("ep_1")
    assert sorted(grade.value for grade in in_force) == [0.2, 1.0]


async def test_a_judges_new_grade_supersedes_its_own_and_no_others(store, episode) -> None:
    for grade in (judged(None), judged(0.4, grader="judge_ranking"), judged(0.9)):
        await store.database.write_async(lambda db, grade=grade: set_judged(db, "ep_1", grade))
    in_force = {grade.grader: grade.value for grade in store.episodes.grades("ep_1")}
    assert in_force == {"judge": 0.9, "judge_ranking": 0.4}
    rows = store.database.read("SELECT superseded_at FROM grades ORDER BY id")
    assert [row["superseded_at"] is None for row in rows] == [False, True, True]


@pytest.fixture
def skills(store) -> RubricStore:
    for id in (1, 2):
        row = (id, f"skill {id}", "2026-01-01T12:00:00+00:00", "learn", 0)
        sql = """INSERT INTO skills (id, title, created_at, policy, centroid_count)
            VALUES (?, ?, ?, ?, ?)"""
        store.database.write(lambda db, sql=sql, row=row: db.execute(sql, row))
    return RubricStore(store.database)


def test_each_version_of_a_rubric_is_kept(store, skills) -> None:
    assert skills.newest(1) is None
    for text, author in (("first", "ada"), ("second ", "bob"), ("", "ada")):
        skills.add(1, text, author=author)
    told = [(row.version, row.text, row.author) for row in skills.versions(1)]
    assert told == [(1, "first", "ada"), (2, "second", "bob"), (3, "", "ada")]
    assert skills.newest(1) == skills.versions(1)[-1]
    assert skills.newest(2) is None


def test_a_merged_skills_rubric_moves_only_where_the_other_has_none(store, skills) -> None:
    skills.add(1, "of one", author="ada")
    store.skills.merge(1, 2)
    assert [row.text for row in skills.versions(2)] == ["of one"]
    assert skills.newest(1) == skills.newest(2)
    with pytest.raises(ConflictError):
        skills.add(1, "too late", author="ada")


def test_the_rubric_of_the_skill_that_stays_holds(store, skills) -> None:
    skills.add(1, "of one", author="ada")
    skills.add(1, "of one, again", author="ada")
    skills.add(2, "of two", author="ada")
    store.skills.merge(1, 2)
    newest = skills.newest(1)
    assert newest is not None and newest.text == "of two"
    assert store.skills.get(2).policy is SkillPolicy.LEARN
