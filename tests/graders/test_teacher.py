"""What keeps a judge's model from doing harm."""

import asyncio
from typing import Any

import pytest

from graders.allowance import Allowance, Breaker
from graders.chat_model import (
    ChatRequest,
    EngineModel,
    Failure,
    OverloadedTeacherError,
    Reply,
    TeacherError,
    reply_of,
)
from graders.judge import Judge
from graders.teacher import Teacher
from graders.votes import VotesConfig
from memory.errors import InvalidRequestError, UnavailableError
from tests.graders.judges import FakeTeacher, in_turn
from tests.graders.test_judge import ANSWER

REQUEST = ChatRequest(
    messages=({"role": "user", "content": "hi"},), schema={}, max_tokens=8, temperature=0.0, seed=1
)
DOWN = OverloadedTeacherError("503")
FINE = Reply(text="fine", num_tokens=10)


def teacher(*replies: Any, **options: Any) -> tuple[Teacher, FakeTeacher]:
    model = FakeTeacher(in_turn(*replies))
    return Teacher(model, **{"deadline_s": 10, "first_pause_s": 0.001, **options}), model


class Hanging:
    """Never answers."""

    name = "hanging"

    def __init__(self) -> None:
        self.num_asked = 0

    async def complete(self, _: ChatRequest) -> Reply:
        self.num_asked += 1
        await asyncio.Event().wait()
        raise AssertionError


async def failure_of(teacher: Teacher) -> Failure:
    with pytest.raises(TeacherError) as caught:
        await teacher.complete(REQUEST)
    return caught.value.failure


async def test_what_may_pass_is_asked_again() -> None:
    asked, model = teacher(DOWN, DOWN, FINE)
    assert await asked.complete(REQUEST) == FINE
    assert len(model.requests) == 3
    assert (asked.tally.num_calls, asked.tally.num_failed, asked.tally.num_tokens) == (3, 2, 10)


async def test_attempts_are_bounded() -> None:
    asked, model = teacher(DOWN, max_attempts=2)
    assert await failure_of(asked) is Failure.UNAVAILABLE
    assert len(model.requests) == 2


async def test_what_cannot_pass_is_not_asked_again() -> None:
    asked, model = teacher(TeacherError(Failure.REFUSED))
    assert await failure_of(asked) is Failure.REFUSED
    assert len(model.requests) == 1


async def test_p_48_a_model_that_hangs_ends_at_its_deadline() -> None:
    model = Hanging()
    asked = Teacher(model, deadline_s=0.05)
    assert await failure_of(asked) is Failure.TIMEOUT
    assert model.num_asked == 1
    assert asked.tally.num_failed == 1


async def test_p_48_a_judge_that_hangs_gives_judge_timeout() -> None:
    judge = Judge(Teacher(Hanging(), deadline_s=0.05), config=VotesConfig(votes=3))
    grade = await asyncio.wait_for(judge.grade(ANSWER), 5)
    assert (grade.value, grade.unscored_reason) == (None, "judge_timeout")


async def test_p_48_after_failures_in_a_row_the_model_is_left_alone() -> None:
    model = Hanging()
    asked = Teacher(model, deadline_s=0.01, breaker=Breaker(max_failures=2))
    assert [await failure_of(asked) for _ in range(4)] == [
        Failure.TIMEOUT,
        Failure.TIMEOUT,
        Failure.RESTING,
        Failure.RESTING,
    ]
    assert model.num_asked == 2
    pause = asked.pause()
    assert pause is not None and pause[1] is Failure.RESTING


async def test_refused_questions_do_not_count_against_the_model() -> None:
    asked, _ = teacher(TeacherError(Failure.REFUSED), breaker=Breaker(max_failures=1))
    assert await failure_of(asked) is Failure.REFUSED
    assert asked.pause() is None


async def test_the_allowance_bounds_calls_retries_included() -> None:
    asked, model = teacher(DOWN, FINE, allowance=Allowance(max_calls=2))
    await asked.complete(REQUEST)
    assert await failure_of(asked) is Failure.SPENT
    assert len(model.requests) == 2


async def test_the_allowance_bounds_tokens_also_where_they_are_not_reported() -> None:
    asked, _ = teacher(FINE, allowance=Allowance(max_tokens=10))
    await asked.complete(REQUEST)
    assert await failure_of(asked) is Failure.SPENT

    silent, _ = teacher(Reply(text="x" * 28), allowance=Allowance(max_tokens=10))
    await silent.complete(REQUEST)  # 30 characters
    assert await failure_of(silent) is Failure.SPENT
    assert (silent.tally.num_tokens, silent.tally.num_calls_without_tokens) == (0, 1)


async def test_no_more_questions_are_under_way_than_may_be() -> None:
    under_way, most, go = 0, 0, asyncio.Event()

    class Counting:
        name = "counting"

        async def complete(self, _: ChatRequest) -> Reply:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            if under_way == 2:
                go.set()
            await go.wait()
            await asyncio.sleep(0)
            under_way -= 1
            return FINE

    asked = Teacher(Counting(), deadline_s=10, max_parallel=2)
    await asyncio.gather(*(asked.complete(REQUEST) for _ in range(7)))
    assert most == 2


async def test_the_engine_is_asked_for_openais_body_and_its_errors_are_told_apart() -> None:
    bodies: list[Any] = []

    async def chat(body: Any) -> Any:
        bodies.append(body)
        return {"choices": [{"message": {"content": "hi"}}], "usage": {"total_tokens": 7}}

    model = EngineModel(chat, name="denizen@base")
    assert await model.complete(REQUEST) == Reply(text="hi", num_tokens=7)
    assert bodies[0]["messages"] == [{"role": "user", "content": "hi"}]
    assert bodies[0]["seed"] == 1 and "model" not in bodies[0]

    for error, failure in (
        (InvalidRequestError("too long"), Failure.REFUSED),
        (UnavailableError("down"), Failure.UNAVAILABLE),
    ):

        async def failing(_: Any, error: Exception = error) -> Any:
            raise error

        with pytest.raises(TeacherError) as caught:
            await EngineModel(failing, name="denizen@base").complete(REQUEST)
        assert caught.value.failure is failure


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{}]}, "text", None])
def test_an_answer_without_a_choice_is_no_reply(answer: Any) -> None:
    with pytest.raises(OverloadedTeacherError):
        reply_of(answer)


def test_a_refusal_and_a_filter_are_refusals() -> None:
    message = {"content": None, "refusal": "no"}
    assert reply_of({"choices": [{"message": message}]}).is_refusal
    filtered = {"message": {"content": ""}, "finish_reason": "content_filter"}
    assert reply_of({"choices": [filtered]}).is_refusal
