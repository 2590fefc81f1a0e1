from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graders.catalog import require_gradable
from graders.number_check import NUMERIC, numbers_of, score_numeric
from graders.types import Answer
from memory.errors import InvalidRequestError


def answer_of(text: str, reference: str | None, **config: Any) -> Answer:
    message = {"role": "assistant", "content": text}
    return Answer(messages=(), message=message, reference=reference, config=config)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("12", [12]),
        ("It is -12.5.", [-12.5]),
        ("−3", [-3]),
        ("5-3", [5, 3]),
        ("1,234,567.5 and 1,23", [1234567.5, 1, 23]),
        ("1.5e3", [1500]),
        ("3/4", [0.75]),
        ("50%", [0.5]),
        (".5", [0.5]),
        ("x2 y", []),
        ("$12.50!", [12.5]),
        ("3 / 0", []),
        ("none", []),
        ("12kg", [12]),
        ("(7)", [7]),
        ("= 42", [42]),
        ("1e999", []),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, numbers: list[float]) -> None:
    assert numbers_of(text) == pytest.approx(numbers)


@pytest.mark.parametrize(
    ("text", "reference", "config", "value"),
    [
        ("12", "12", {}, 1.0),
        ("12.0", "12", {}, 1.0),
        ("First 3, then 4, so 12", "12", {}, 1.0),
        ("12 and not 13", "12", {}, 0.0),
        ("1 2 3 4 5 6 7 8 9 12", "7", {}, 0.0),
        ("3.14", "3.14159", {"tolerance": 0.01}, 1.0),
        ("3.1", "3.14159", {"tolerance": 0.01}, 0.0),
        ("101", "100", {"relative_tolerance": 0.01}, 1.0),
        ("102", "100", {"relative_tolerance": 0.01}, 0.0),
        ("0.1", "0.1", {}, 1.0),
        ("-12", "12", {}, 0.0),
        ("25%", "0.25", {}, 1.0),
        ("1/3", "0.3333", {"tolerance": 1e-4}, 1.0),
        ("1,000", "1000", {}, 1.0),
        ("no number", "12", {}, 0.0),
        ("", "12", {}, 0.0),
        ("12", "12", {"only": True}, 1.0),
        ("6 * 2 = 12", "12", {"only": True}, 0.0),
    ],
)
def test_the_last_number_counts_within_the_tolerance(text, reference, config, value) -> None:
    score = score_numeric(answer_of(text, reference, **config))
    assert score.value == value
    assert score.explanation


@given(st.floats(-1e12, 1e12), st.floats(0, 100))
def test_a_number_within_the_tolerance_is_right_and_beyond_it_wrong(wanted, tolerance) -> None:
    def value(said: float) -> float:
        config = {"tolerance": tolerance, "relative_tolerance": 0.0}
        return score_numeric(answer_of(f"{said:.6f}", f"{wanted:.6f}", **config)).value

    room = 1e-3 + abs(wanted) * 1e-9
    assert value(wanted + max(0.0, tolerance - room)) == 1.0
    assert value(wanted + tolerance + room) == 0.0


@pytest.mark.parametrize(
    ("reference", "config"),
    [
        ("twelve", {}),
        ("1 or 2", {}),
        ("12", {"tolerance": -1}),
        ("12", {"tolerance": "x"}),
        ("12", {"tolerence": 1}),
        ("12", {"relative_tolerance": 1.5}),
    ],
)
async def test_what_cannot_be_scored_is_refused_before_the_task_is_kept(reference, config) -> None:
    with pytest.raises(InvalidRequestError):
        require_gradable("numeric", reference=reference, config=config)
    assert (await NUMERIC.grade(answer_of("12", reference, **config))).value is None
