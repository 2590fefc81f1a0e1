"""One answer, several votes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from graders.chat_model import ChatRequest, Failure, OverloadedTeacherError, Reply, TeacherError
from graders.judge import SPLIT, GradeCache, Judge
from graders.rubrics import Rubric
from graders.types import Answer, Grader
from graders.votes import VotesConfig
from memory.types import Grade, GradeKind
from tests.graders.judges import FakeTeacher, in_turn, scoring, ticket, verdict

ANSWER = Answer(
    messages=({"role": "user", "content": "3 * 4 = ?"},),
    message={"role": "assistant", "content": "12"},
)
NO_VERDICT = "I would say it is fine."


def said(*values: Any) -> FakeTeacher:
    """Give these scores in turn; a text is a reply as it is."""
    replies = [one if isinstance(one, str) else scoring(one) for one in values]
    return FakeTeacher(in_turn(*replies))


async def judged(teacher: FakeTeacher, votes: int = 3, **options: Any) -> Grade:
    config = VotesConfig(votes=votes)
    return await Judge(teacher, config=config, **options).grade(ANSWER)


async def test_a_judge_is_a_grader_whose_grade_says_what_it_rests_on() -> None:
    judge: Grader = Judge(said(7))
    grade = await judge.grade(ANSWER)
    assert (grade.kind, grade.grader, grade.version) == (GradeKind.JUDGE, "judge", judge.version)
    assert judge.version == "score.1.1/rubric_task.1/3x0.7/fake"
    assert (grade.value, grade.explanation) == (0.7, "so it is")
    assert grade.evidence["scores"] == [0.7, 0.7, 0.7]
    assert grade.evidence["seeds"] == [0, 1, 2]
    assert (grade.evidence["temperature"], grade.evidence["answer_characters"]) == (0.7, 2)


@pytest.mark.parametrize(
    ("scores", "value"),
    [
        ((7, 7, 7), 0.7),
        ((6, 7, 8), 0.7),
        ((1, 2, 10), 0.2),  # one vote far off, two agree
        ((0, 5, 10), None),
        ((1, 4, 9), None),
        ((5,), 0.5),
        ((4, 6), 0.5),
        ((2, 8), None),
        ((2, 2, 8, 8), None),
        ((0, 0, 1, 9, 10), 0.1),
    ],
)
async def test_the_median_counts_where_most_votes_agree_with_it(scores, value) -> None:
    grade = await judged(said(*scores), votes=len(scores))
    assert grade.value == (None if value is None else pytest.approx(value))
    assert grade.unscored_reason == (SPLIT if value is None else None)


async def test_the_explanation_is_of_a_vote_that_agrees_with_the_value() -> None:
    def vote(value: int) -> Any:
        return lambda request: verdict(request, reason=f"gives {value}", score=value)

    grade = await judged(FakeTeacher(in_turn(vote(9), vote(3), vote(3))))
    assert (grade.value, grade.explanation) == (0.3, "gives 3")


async def test_p_46_what_is_no_verdict_is_asked_again_and_then_counts_as_nothing() -> None:
    teacher = FakeTeacher(in_turn(NO_VERDICT, scoring(4)))
    grade = await judged(teacher, votes=1)
    assert (grade.value, len(teacher.requests)) == (0.4, 2)
    assert grade.evidence["seeds"] == [1]  # the seed before would say the same again
    first, second = (ticket(request) for request in teacher.requests)
    assert first != second

    grade = await judged(said(NO_VERDICT), votes=3)
    assert (grade.value, grade.unscored_reason) == (None, "no_verdict")
    assert grade.evidence["may_pass"] is False


async def test_a_score_beyond_the_scale_is_never_cut_to_its_end() -> None:
    grade = await judged(said(15))
    assert (grade.value, grade.unscored_reason) == (None, "out_of_range")


async def test_votes_that_can_be_read_decide_if_they_are_more_than_half() -> None:
    def by_seed(texts: dict[int, Any]) -> FakeTeacher:
        def answer(request: ChatRequest) -> Any:
            said = texts.get(request.seed % 3, 6)
            return said if isinstance(said, str) else verdict(request, score=said)

        return FakeTeacher(answer)

    assert (await judged(by_seed({0: NO_VERDICT}))).value == 0.6
    grade = await judged(by_seed({0: NO_VERDICT, 2: "{}"}))
    assert (grade.value, grade.unscored_reason) == (None, "no_verdict, no_ticket")


async def test_a_refusal_outside_the_text_is_a_refusal() -> None:
    grade = await judged(FakeTeacher(lambda _: Reply(text="", is_refusal=True)))
    assert (grade.value, grade.unscored_reason) == (None, "refused")


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (TeacherError(Failure.TIMEOUT), True),
        (OverloadedTeacherError(), True),
        (TeacherError(Failure.SPENT), True),
        (TeacherError(Failure.REFUSED), False),
    ],
)
async def test_p_48_a_judge_without_a_reply_gives_no_number_and_says_why(error, may_pass) -> None:
    grade = await judged(FakeTeacher(lambda _: error))
    assert (grade.value, grade.unscored_reason) == (None, error.failure)
    assert grade.evidence["may_pass"] is may_pass


async def test_the_same_is_not_judged_twice_and_what_failed_is() -> None:
    cache, teacher = GradeCache(), said(7)
    first = await judged(teacher, cache=cache)
    assert await judged(teacher, cache=cache) == first
    assert len(teacher.requests) == 3
    await judged(teacher, cache=cache, rubric=Rubric(version="skill2.1", text="Be strict."))
    assert len(teacher.requests) == 6
    cache.clear()
    await judged(teacher, cache=cache)
    assert len(teacher.requests) == 9

    failing, cache = said(NO_VERDICT), GradeCache()
    await judged(failing, cache=cache)
    asked = len(failing.requests)
    await judged(failing, cache=cache)
    assert len(failing.requests) == 2 * asked


async def test_a_cache_forgets_what_was_used_least_recently() -> None:
    cache = GradeCache(at_most=1)
    grade = await judged(said(7))
    cache.put("a", grade)
    cache.put("b", grade)
    assert (cache.get("a"), cache.get("b")) == (None, grade)


async def test_the_reason_is_asked_for_before_the_score() -> None:
    teacher = said(7)
    await judged(teacher, votes=1)
    schema = teacher.requests[0].schema
    assert list(schema["properties"]) == ["ticket", "reason", "score"] == schema["required"]
    assert schema["additionalProperties"] is False
    form = teacher.requests[0].body()["response_format"]
    assert form["type"] == "json_schema" and form["json_schema"]["schema"] == schema


async def test_rubric_reference_and_tool_calls_reach_the_judge() -> None:
    call = {"function": {"name": "add", "arguments": '{"x": 1}'}}
    answer = Answer(
        messages=ANSWER.messages,
        message={"role": "assistant", "content": None, "tool_calls": [call]},
        reference="13 is right",
    )
    teacher = said(7)
    rubric = Rubric(version="r", text="Count the tool calls.")
    await Judge(teacher, rubric=rubric, has_reference=True).grade(answer)
    instruction, data = (message["content"] for message in teacher.requests[0].messages)
    assert "Count the tool calls." in instruction
    assert "13 is right" in data and json.dumps(call, ensure_ascii=False) in data
    assert "3 * 4" in data


async def test_the_default_rubric_depends_on_whether_there_is_a_reference() -> None:
    with_reference = Judge(said(7), has_reference=True)
    assert "reference" in with_reference.rubric.text
    assert "reference" not in Judge(said(7)).rubric.text
    assert with_reference.version != Judge(said(7)).version


async def test_the_judge_is_told_that_length_is_no_merit() -> None:
    teacher = said(7)
    await judged(teacher, votes=1)
    assert "Length is not quality" in teacher.requests[0].messages[0]["content"]


@pytest.mark.parametrize("rubric", [None, Rubric(version="skill2.1", text="Be strict.")])
def test_a_judge_that_is_shown_a_reference_is_another_version(rubric) -> None:
    with_it, without = (
        Judge(said(7), rubric=rubric, has_reference=has_reference).version
        for has_reference in (True, False)
    )
    assert with_it != without


async def test_a_judge_without_reference_is_shown_none() -> None:
    teacher = said(7)
    grade = await Judge(teacher).grade(replace(ANSWER, reference="13 is right"))
    assert grade.value == 0.7
    assert "13 is right" not in json.dumps([request.messages for request in teacher.requests])
