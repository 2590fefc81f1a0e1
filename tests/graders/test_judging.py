"""The background part: what waits is judged, tried again, or given up."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from graders.chat_model import OverloadedTeacherError
from graders.judging import JudgeConfig, Judging, Pace, as_shown, wants_judge
from graders.teacher import Teacher
from memory import judge_queue
from memory.fences import ControlTokens
from memory.store import Store
from memory.types import EpisodeSource, Grade, GradeKind
from tests import records
from tests.graders.judges import FakeTeacher, in_turn, scoring

DOWN = OverloadedTeacherError("503")
PACE = Pace(look_s=0.01, first_retry_s=0.02, max_yield_s=0.2)


@pytest.fixture
def store(tmp_path) -> Any:
    store = Store(tmp_path / "denizen.db")
    yield store
    store.close()


@asynccontextmanager
async def judging(
    store: Store, model: FakeTeacher, **options: Any
) -> AsyncIterator[tuple[Judging, asyncio.Event]]:
    """Run the part over a store in which one answer waits; the event is set after each grade."""
    await store.episodes.record(records.episode(), [records.call()], [None])
    call_id = records.call().id
    await store.database.write_async(lambda db: judge_queue.wish(db, "ep_1", call_id))
    graded = asyncio.Event()
    given: dict[str, Any] = {
        "store": store,
        "teacher": Teacher(model, deadline_s=10, max_attempts=1),
        "config": JudgeConfig(votes=1, max_parallel=2),
        "rubric_of": lambda _: None,
        "control_tokens": ControlTokens(),
        "on_judged": graded.set,
        "has_to_wait": lambda: False,
        "pace": PACE,
    }
    part = Judging(**given | options)
    running = asyncio.create_task(part.run())
    yield part, graded
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_queue, "PATIENCE_S", 0.0)


async def until(condition: Callable[[], bool], graded: asyncio.Event) -> None:
    async with asyncio.timeout(10):
        while not condition():
            graded.clear()
            await graded.wait()


def grades(store: Store) -> list[tuple[float | None, str | None]]:
    return [(grade.value, grade.unscored_reason) for grade in store.episodes.grades("ep_1")]


async def test_what_failed_for_the_moment_is_judged_later(store: Store) -> None:
    model = FakeTeacher(in_turn(DOWN, scoring(7)))
    async with judging(store, model) as (part, graded):
        await until(lambda: grades(store) == [(0.7, None)], graded)
        assert part.report()["results"] == {"judge_unavailable": 1, "scored": 1}
        assert part.report()["waiting"] == 0
    history = store.database.read("SELECT value, superseded_at FROM grades ORDER BY id")
    assert [(row["value"], row["superseded_at"] is None) for row in history] == [
        (None, False),
        (0.7, True),
    ]


async def test_after_three_tries_it_is_given_up(store: Store) -> None:
    model = FakeTeacher(in_turn(DOWN))
    async with judging(store, model) as (part, graded):
        await until(lambda: part.report()["results"].get("judge_unavailable") == 3, graded)
        async with asyncio.timeout(10):  # it is counted a moment before it is taken from the queue
            while part.report()["waiting"]:
                await asyncio.sleep(0.01)
    assert grades(store) == [(None, "judge_unavailable")]
    assert len(model.requests) == 3


async def test_what_is_no_verdict_is_not_tried_again_later(store: Store) -> None:
    async with judging(store, FakeTeacher(in_turn("hm"))) as (part, graded):
        await until(lambda: grades(store) == [(None, "no_verdict")], graded)
        assert part.report()["waiting"] == 0


async def test_a_fault_of_its_own_is_said_and_ends_nothing(store: Store) -> None:
    faults = iter([RuntimeError("a bug")])

    def rubric_of(_: int | None) -> None:
        for fault in faults:
            raise fault

    model = FakeTeacher(in_turn(scoring(7)))
    async with judging(store, model, rubric_of=rubric_of) as (_, graded):
        await until(lambda: grades(store) == [(0.7, None)], graded)
    told = store.database.read("SELECT unscored_reason FROM grades ORDER BY id")
    assert "the service's log says more" in told[0]["unscored_reason"]


async def test_it_gives_way_to_answers_but_not_for_ever(store: Store) -> None:
    began = time.monotonic()
    model = FakeTeacher(in_turn(scoring(7)))
    async with judging(store, model, has_to_wait=lambda: True) as (_, graded):
        await until(lambda: grades(store) == [(0.7, None)], graded)
    assert time.monotonic() - began >= PACE.max_yield_s


async def test_an_answer_that_is_gone_waits_no_longer(store: Store) -> None:
    model = FakeTeacher(in_turn(scoring(7)))
    async with judging(store, model, has_to_wait=lambda: True) as (part, _):
        await store.database.write_async(lambda db: db.execute("DELETE FROM calls"))
        async with asyncio.timeout(10):
            while part.report()["waiting"]:
                await asyncio.sleep(0)
    assert (grades(store), model.requests) == ([], [])


def check(value: float | None) -> Grade:
    reason = None if value is not None else "no reference"
    kind = GradeKind.CHECK
    return Grade(kind=kind, grader="exact", version="1", value=value, unscored_reason=reason)


@pytest.mark.parametrize(
    ("mode", "grader", "learn", "graded", "wanted"),
    [
        ("off", "judge", True, [], False),
        ("asked", None, True, [], False),
        ("asked", "judge", True, [], True),
        ("asked", "judge", False, [check(1.0)], True),  # asked for is asked for
        ("all", None, True, [], True),
        ("all", None, True, [check(None)], True),
        ("all", None, True, [check(0.0)], False),
        ("all", None, False, [], False),
    ],
)
def test_who_is_judged_follows_from_the_setting(mode, grader, learn, graded, wanted) -> None:
    episode = records.episode(grader=grader, learn=learn)
    assert wants_judge(JudgeConfig(judge=mode), episode, graded) is wanted


def test_what_was_practised_is_judged_by_nobody_else() -> None:
    practised = records.episode(grader="judge", source=EpisodeSource.PRACTICE)
    assert not wants_judge(JudgeConfig(judge="all"), practised, [])


@pytest.mark.parametrize(
    ("grader", "graded", "shown"),
    [
        (None, [check(1.0)], None),
        ("exact", [check(0.0)], None),
        (None, [check(None)], "12"),
        (None, [], "12"),
        ("judge", [Grade(kind=GradeKind.PERSON, grader="ada", version="1", value=1.0)], "12"),
    ],
)
def test_a_judge_is_not_shown_what_the_check_saw_that_it_is_measured_by(
    grader, graded, shown
) -> None:
    episode = records.episode(grader=grader, reference="12")
    assert as_shown(episode, graded).reference == shown
