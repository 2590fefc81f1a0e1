"""The graders by name, as ``metadata.grader`` and a task's ``grader`` give it."""

from collections.abc import Mapping
from typing import Any

from graders.checks import CONTAINS, EXACT, JSON_SCHEMA, REGEX, Check
from graders.judge import JUDGE
from graders.reasoning import REASONING_GYM
from memory.errors import InvalidRequestError

DEFAULT_GRADER = CONTAINS.name
"""What grades a task that has a reference and names no grader."""

CHECKS: Mapping[str, Check] = {
    check.name: check for check in (EXACT, CONTAINS, REGEX, JSON_SCHEMA, REASONING_GYM)
}


def find_grader(name: str) -> Check:
    """Return the check of this name.

    Raises:
        InvalidRequestError: There is none; the message lists those there are.
    """
    if name not in CHECKS:
        known = ", ".join(sorted(CHECKS))
        what = (
            "a task that is tried again needs a check, not a judge"
            if name == JUDGE
            else f"unknown grader {name!r}"
        )
        raise InvalidRequestError(f"{what}; known graders: {known}", param="grader")
    return CHECKS[name]


def require_known(name: str, *, has_judge: bool) -> None:
    """Make sure, before a request is answered, that ``metadata.grader`` names something.

    Raises:
        InvalidRequestError: Unknown grader, or a judge where none is set up.
    """
    if name != JUDGE:
        find_grader(name)
    elif not has_judge:
        raise InvalidRequestError("no judge is set up (graders.judge is off)", param="grader")


def require_gradable(name: str, *, reference: str | None, config: Mapping[str, Any]) -> None:
    """Make sure, before a task is kept, that its grader has what it reads.

    Raises:
        InvalidRequestError: Unknown grader, or its reference or part of its config is missing.
    """
    check = find_grader(name)
    if check.needs_reference and not (reference and reference.strip()):
        raise InvalidRequestError(f"grader {name!r} needs a reference", param="reference")
    missing = [key for key in check.needs_config if key not in config]
    if missing:
        raise InvalidRequestError(
            f"grader {name!r} needs grader_config.{missing[0]}", param=f"grader_config.{missing[0]}"
        )
