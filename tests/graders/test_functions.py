"""Graders that an operator names in the settings."""

from collections.abc import Iterator
from typing import Any

import pytest

from graders import catalog
from graders.functions import FunctionsConfig, load
from graders.types import Answer
from memory.errors import ConfigError, InvalidRequestError

HERE = "tests.graders.test_functions"


def shout(answer: str, reference: str | None, config: Any) -> tuple[float, str]:
    return float(answer.isupper()), f"against {reference}, {dict(config)}"


def odd(answer: str, reference: str | None, config: Any) -> Any:
    return {"none": None, "two": 2, "word": "good", "yes": True, "nan": float("nan")}[answer]


NOT_A_FUNCTION = 3


@pytest.fixture
def installed() -> Iterator[None]:
    functions = {"shout": f"{HERE}:shout", "odd": f"{HERE}:odd"}
    catalog.install(load(FunctionsConfig(functions=functions)))
    yield
    catalog.install([])


def answer_of(text: str, **config: Any) -> Answer:
    message = {"role": "assistant", "content": text}
    return Answer(messages=(), message=message, reference="ref", config=config)


async def test_a_named_function_grades(installed) -> None:
    check = catalog.find_grader("shout")
    grade = await check.grade(answer_of("LOUD", a=1))
    assert (grade.value, grade.explanation) == (1.0, "against ref, {'a': 1}")
    assert (grade.grader, grade.version) == ("shout", f"{HERE}:shout")
    assert (await check.grade(answer_of("soft"))).value == 0.0
    catalog.require_gradable("shout", reference=None, config={})


@pytest.mark.parametrize(
    ("text", "value"), [("none", None), ("two", None), ("word", None), ("nan", None), ("yes", 1.0)]
)
async def test_only_a_number_from_0_to_1_is_a_value(installed, text, value) -> None:
    grade = await catalog.find_grader("odd").grade(answer_of(text))
    assert grade.value == value
    assert (grade.unscored_reason is None) is (value is not None)


async def test_a_function_that_fails_leaves_the_answer_unscored(installed) -> None:
    grade = await catalog.find_grader("odd").grade(answer_of("no such word"))
    assert grade.unscored_reason == "KeyError: 'no such word'"


def test_without_the_setting_the_name_is_unknown() -> None:
    with pytest.raises(InvalidRequestError, match="unknown grader 'shout'"):
        catalog.find_grader("shout")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("mine", "no.such.module:f"),
        ("mine", f"{HERE}:missing"),
        ("mine", f"{HERE}:NOT_A_FUNCTION"),
        ("mine", HERE),
        ("mine", ":f"),
        ("not a name", f"{HERE}:shout"),
    ],
)
def test_a_path_that_names_no_function_is_refused_at_the_start(name: str, path: str) -> None:
    with pytest.raises(ConfigError, match=r"graders\.functions\."):
        load(FunctionsConfig(functions={name: path}))


@pytest.mark.parametrize("name", ["exact", "judge"])
def test_a_function_cannot_take_the_place_of_a_grader(name: str) -> None:
    with pytest.raises(ConfigError, match="is a grader already"):
        catalog.install(load(FunctionsConfig(functions={name: f"{HERE}:shout"})))
    assert catalog.find_grader("exact").version == "1"
