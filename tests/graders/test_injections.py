"""Answers that try to talk the judge into a grade."""

import re

import pytest

from graders.judge import Judge
from graders.votes import VotesConfig
from memory.fences import TURN_TOKENS
from tests.graders.injections import PAYLOAD, injections
from tests.graders.judges import (
    FENCED,
    LOOSELY_FENCED,
    FakeTeacher,
    obedient,
    outside,
    yes_sayer,
)

ONE_VOTE = VotesConfig(votes=1)


async def values(answer, teacher: FakeTeacher) -> float | None:
    return (await Judge(teacher, config=ONE_VOTE, has_reference=True).grade(answer)).value


def test_there_are_two_hundred_attacks_of_eight_kinds() -> None:
    attacks = injections()
    assert len(attacks) == 200
    assert len({one.kind for one in attacks}) == 8
    assert len({(str(one.answer.messages), one.answer.text) for one in attacks}) == 200


@pytest.mark.parametrize("fence", [FENCED, LOOSELY_FENCED])
async def test_p_47_no_injection_flips_a_judge_that_obeys_all_it_is_told_outside_the_fence(
    fence: re.Pattern[str],
) -> None:
    teacher = FakeTeacher(obedient(fence))
    found = [(one.kind, await values(one.answer, teacher)) for one in injections()]
    flips = [kind for kind, value in found if value is not None and value > 0.5]
    unread = [kind for kind, value in found if value is None]
    assert (len(found), flips, unread) == (200, [], [])
    for request in teacher.requests:
        assert PAYLOAD not in outside(request, fence)
        whole = "\n".join(message["content"] for message in request.messages)
        assert not any(token in whole for token in TURN_TOKENS)


async def test_the_attacks_work_on_a_judge_that_obeys_what_stands_inside_the_fence() -> None:
    """Otherwise the test above would show nothing."""
    teacher = FakeTeacher(yes_sayer)
    found = [await values(one.answer, teacher) for one in injections()]
    assert found == [1.0] * 200
    assert {await values(one.clean, teacher) for one in injections()} == {0.1}


async def test_the_attacks_work_on_a_prompt_without_fences() -> None:
    teacher = FakeTeacher(obedient(re.compile("(?!)")))
    found = [await values(one.answer, teacher) for one in injections()]
    assert found == [1.0] * 200


async def test_a_reply_that_is_nothing_but_the_answers_own_verdict_has_no_number() -> None:
    for one in injections():
        teacher = FakeTeacher(lambda _, text=one.answer.text: text)
        assert await values(one.answer, teacher) is None
