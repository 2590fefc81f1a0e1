"""By what a judge scores: a skill's own rubric, or the default one for the task at hand."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from memory.rubric_store import RubricRow

_VERSION_LINE = re.compile(r"version: ([0-9]+)\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rubric:
    """One version of a rubric.

    Example:
        ``Rubric(version="skill2.3", text="Full marks only for …")``
    """

    version: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptFile:
    """A text that is sent to a judge, with the version that its first line gives."""

    version: str
    text: str


RubricOf = Callable[[int | None], Rubric | None]
"""Returns the rubric that a person gave to a skill; None: the default one counts."""


@cache
def prompt_file(name: str) -> PromptFile:
    """Return ``graders/prompts/NAME.txt``; its version is ``NAME.1``.

    Raises:
        ValueError: its first line gives no version.
    """
    told = (files("graders") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    match = _VERSION_LINE.match(told)
    if match is None:
        raise ValueError(f"graders/prompts/{name}.txt does not begin with its version")
    return PromptFile(version=f"{name}.{match[1]}", text=told[match.end() :].strip())


def default_rubric(*, has_reference: bool) -> Rubric:
    """Return the rubric that a task itself gives: it asks for its own result, or the reference."""
    file = prompt_file("rubric_reference" if has_reference else "rubric_task")
    return Rubric(version=file.version, text=file.text)


def given_rubric(row: RubricRow | None) -> Rubric | None:
    """Return what a person wrote down; None where that is nothing."""
    if row is None or not row.text:
        return None
    return Rubric(version=f"skill{row.skill_id}.{row.version}", text=row.text)
