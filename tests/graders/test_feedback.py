from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graders.feedback import grade_feedback, newest_correction, read_feedback
from graders.outcome import merge
from memory.errors import InvalidRequestError
from memory.types import Feedback, GradeKind

START = datetime(2026, 1, 1, tzinfo=UTC)


def feedback(value: float, *, minute: int, source: str = "user", **fields: Any) -> Feedback:
    return Feedback(
        id=f"fb_{minute}",
        episode_id="ep_1",
        created_at=START + timedelta(minutes=minute),
        value=value,
        source=source,
        **fields,
    )


def test_newest_of_each_source_counts_and_sources_are_averaged() -> None:
    given = [
        feedback(1.0, minute=3),
        feedback(0.0, minute=1),  # the same user's earlier opinion
        feedback(0.5, minute=2, source="editor"),
    ]
    grades = grade_feedback(given)
    assert {grade.grader: grade.value for grade in grades} == {"user": 1.0, "editor": 0.5}
    assert {grade.kind for grade in grades} == {GradeKind.PERSON}
    assert merge(grades).value == 0.75


def test_what_one_person_says_of_two_answers_is_two_opinions() -> None:
    given = [
        feedback(1.0, minute=1, call_id="c1"),
        feedback(0.0, minute=2, call_id="c2"),
        feedback(0.5, minute=3),  # of the episode as a whole
        feedback(0.0, minute=4, call_id="c1"),  # replaces the first
    ]
    values = {g.evidence["call_id"]: g.value for g in grade_feedback(given)}
    assert values == {"c1": 0.0, "c2": 0.0, None: 0.5}


@pytest.mark.parametrize(
    ("first", "second", "is_repeated"),
    [
        ({}, {}, True),
        ({"comment": "long"}, {"comment": "long"}, True),
        ({"comment": "long", "correction": "12"}, {}, True),
        ({}, {"comment": "long"}, False),
        ({"comment": "long"}, {"comment": "short"}, False),
        ({}, {"correction": "12"}, False),
        ({}, {"value": 0.0}, False),
        ({"comment": "long"}, {"value": 0.0, "comment": "long"}, False),
    ],
)
def test_only_what_adds_nothing_is_a_repetition(
    first: dict[str, Any], second: dict[str, Any], is_repeated: bool
) -> None:
    said = [feedback(**{"value": 1.0, "minute": 1} | given) for given in (first, second)]
    assert said[1].repeats(said[0]) is is_repeated


def test_of_equally_old_feedback_the_last_given_counts() -> None:
    grades = grade_feedback([feedback(0.0, minute=1), feedback(1.0, minute=1)])
    assert [grade.value for grade in grades] == [1.0]


def test_grade_keeps_the_comment_and_says_which_feedback_it_is() -> None:
    grade = grade_feedback([feedback(0.0, minute=4, comment="too long", call_id="c1")])[0]
    assert grade.explanation == "too long"
    assert grade.evidence == {"feedback_id": "fb_4", "call_id": "c1"}


def test_no_feedback_gives_no_grades() -> None:
    assert grade_feedback([]) == []


def test_newest_correction_survives_later_feedback_without_one() -> None:
    given = [
        feedback(0.0, minute=1, correction="11"),
        feedback(0.0, minute=2, correction="12"),
        feedback(1.0, minute=3),
    ]
    assert newest_correction(given) == "12"
    assert newest_correction(given[2:]) is None


@pytest.mark.parametrize(
    ("value", "score"), [(True, 1.0), (False, 0.0), (1, 1.0), (0, 0.0), (0.25, 0.25)]
)
def test_body_takes_thumbs_and_numbers(value: object, score: float) -> None:
    body = read_feedback({"completion_id": "c1", "value": value})
    assert body.score == score
    assert (body.comment, body.correction, body.source) == (None, None, "user")


@pytest.mark.parametrize("value", ["yes", "0.5", 1.01, -0.1, float("nan"), float("inf"), None, [1]])
def test_body_refuses_a_value_that_is_no_score(value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_feedback({"completion_id": "c1", "value": value})
    assert (caught.value.param or "").startswith("value")


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"episode_id": "e1"}, None, "either completion_id or episode_id"),
        ({"completion_id": None}, None, "either completion_id or episode_id"),
        ({"completion_id": ""}, "completion_id", "1 character"),
        ({"rating": 5}, "rating", "known keys: completion_id"),
        ({"comment": 5}, "comment", "string"),
        ({"comment": "x" * 20_001}, "comment", "20000"),
        ({"correction": ""}, "correction", "1 character"),
    ],
)
def test_body_names_the_key_at_fault(
    change: dict[str, object], param: str | None, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_feedback({"completion_id": "c1", "value": 1} | change)
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize("body", [None, [], "text", 3])
def test_body_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(InvalidRequestError):
        read_feedback(body)
