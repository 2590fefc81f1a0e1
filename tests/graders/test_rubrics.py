"""Rubrics and prompts as text files."""

from importlib.resources import files

import pytest

from graders.judge_prompt import prompt_version
from graders.rubrics import default_rubric, given_rubric, prompt_file
from memory.rubric_store import RubricRow
from tests.records import NOON

NAMES = sorted(
    file.name.removesuffix(".txt")
    for file in (files("graders") / "prompts").iterdir()
    if file.name.endswith(".txt")
)


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_has_a_version_that_the_judge_does_not_see(name: str) -> None:
    file = prompt_file(name)
    assert file.version.startswith(f"{name}.")
    assert file.text and "version:" not in file.text


def test_prompts_are_named_by_both_of_their_files() -> None:
    assert prompt_version("score") == "score.1.1"


def row(text: str) -> RubricRow:
    return RubricRow(skill_id=2, version=3, text=text, created_at=NOON, author="ada")


def test_a_skills_own_rubric_is_named_by_skill_and_version() -> None:
    rubric = given_rubric(row("Be strict."))
    assert rubric is not None
    assert (rubric.version, rubric.text) == ("skill2.3", "Be strict.")


def test_an_empty_rubric_or_none_is_the_default() -> None:
    assert given_rubric(row("")) is given_rubric(None) is None
    assert default_rubric(has_reference=True).version == "rubric_reference.1"
