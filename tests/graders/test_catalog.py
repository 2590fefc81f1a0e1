from typing import Any

import pytest

from graders.catalog import CHECKS, DEFAULT_GRADER, find_grader, require_gradable, require_known
from memory.errors import InvalidRequestError
from memory.types import GradeKind


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_grader_is_found_under_its_own_name(name: str) -> None:
    assert find_grader(name).name == name
    assert find_grader(name).kind is GradeKind.CHECK


def test_default_grader_exists() -> None:
    assert DEFAULT_GRADER in CHECKS


def test_unknown_grader_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="'fuzzy'; known graders: contains, exact") as e:
        find_grader("fuzzy")
    assert e.value.param == "grader"


def test_the_judge_is_no_check() -> None:
    with pytest.raises(InvalidRequestError, match="unknown grader 'judge'"):
        find_grader("judge")


def test_an_episode_may_name_the_judge_where_one_is_set_up() -> None:
    require_known("judge", has_judge=True)
    require_known("exact", has_judge=False)
    with pytest.raises(InvalidRequestError, match="no judge is set up"):
        require_known("judge", has_judge=False)
    with pytest.raises(InvalidRequestError, match="fuzzy"):
        require_known("fuzzy", has_judge=True)


@pytest.mark.parametrize(
    ("name", "reference", "config", "param"),
    [
        ("exact", None, {}, "reference"),
        ("contains", " ", {}, "reference"),
        ("regex", None, {}, "grader_config.pattern"),
        ("json_schema", "x", {}, "grader_config.schema"),
        ("reasoning_gym", "x", {"dataset": "products"}, "grader_config.entry"),
        ("fuzzy", "x", {}, "grader"),
        ("regex", None, {"pattern": "("}, "grader_config"),
        ("regex", None, {"pattern": 3}, "grader_config"),
        ("json_schema", None, {"schema": {"type": "nonsense"}}, "grader_config"),
        ("tool_calls", None, {}, "grader_config.calls"),
        ("unit_tests", None, {}, "grader_config.tests"),
        ("instructions", None, {}, "grader_config"),
    ],
)
def test_task_without_what_its_grader_reads_is_refused(
    name: str, reference: str | None, config: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        require_gradable(name, reference=reference, config=config)
    assert caught.value.param == param


def test_task_with_what_its_grader_reads_passes() -> None:
    require_gradable("exact", reference="12", config={})
    require_gradable("regex", reference=None, config={"pattern": "x"})
    require_gradable("judge", reference=None, config={})
