"""The graders by name, as ``metadata.grader`` and a task's ``grader`` give it."""

from collections.abc import Iterable, Mapping
from typing import Any

from graders.checks import Check, UnscoredError
from graders.instructions import INSTRUCTIONS
from graders.json_check import JSON_SCHEMA
from graders.judge import JUDGE
from graders.number_check import NUMERIC
from graders.reasoning import REASONING_GYM
from graders.text_checks import CONTAINS, EXACT, NORMALISED, REGEX
from graders.tool_calls import TOOL_CALLS
from graders.unit_tests import UNIT_TESTS
from memory.errors import ConfigError, InvalidRequestError

DEFAULT_GRADER = CONTAINS.name
"""What grades a task that has a reference and names no grader."""

_BUILT_IN = (
    EXACT,
    NORMALISED,
    CONTAINS,
    NUMERIC,
    REGEX,
    JSON_SCHEMA,
    TOOL_CALLS,
    UNIT_TESTS,
    INSTRUCTIONS,
    REASONING_GYM,
)
CHECKS: Mapping[str, Check] = {check.name: check for check in _BUILT_IN}
_installed: dict[str, Check] = {}  # by the settings; see ``install``


def install(checks: Iterable[Check]) -> None:
    """Add what the settings name, in place of what was added before; once, at the start.

    ``unit_tests`` may be given anew; every other built-in name stays what it is.

    Raises:
        ConfigError: a name is taken.
    """
    found = {check.name: check for check in checks}
    if taken := sorted(found.keys() & (CHECKS.keys() | {"judge"}) - {UNIT_TESTS.name}):
        raise ConfigError(f"graders.functions.{taken[0]}: {taken[0]!r} is a grader already")
    _installed.clear()
    _installed.update(found)


def find_grader(name: str) -> Check:
    """Return the check of this name.

    Raises:
        InvalidRequestError: There is none; the message lists those there are.
    """
    known = {**CHECKS, **_installed}
    if name not in known:
        names = ", ".join(sorted(known))
        raise InvalidRequestError(
            f"unknown grader {name!r}; known graders: {names}", param="grader"
        )
    return known[name]


def require_known(name: str, *, has_judge: bool) -> None:
    """Make sure, before a request is answered or a task kept, that its grader is there.

    Raises:
        InvalidRequestError: Unknown grader, or a judge where none is set up.
    """
    if name != JUDGE:
        find_grader(name)
    elif not has_judge:
        raise InvalidRequestError("no judge is set up (graders.judge is off)", param="grader")


def require_gradable(name: str, *, reference: str | None, config: Mapping[str, Any]) -> None:
    """Make sure, before a task is kept, that its grader can grade it; a judge can grade any.

    Raises:
        InvalidRequestError: Unknown grader, its reference or part of its config is missing, or
            they are such that no answer could be scored.
    """
    if name == JUDGE:
        if config:
            raise InvalidRequestError("the judge reads no grader_config", param="grader_config")
        return
    check = find_grader(name)
    if check.needs_reference and not (reference and reference.strip()):
        raise InvalidRequestError(f"grader {name!r} needs a reference", param="reference")
    missing = [key for key in check.needs_config if key not in config]
    if missing:
        raise InvalidRequestError(
            f"grader {name!r} needs grader_config.{missing[0]}", param=f"grader_config.{missing[0]}"
        )
    try:
        check.validate(config, reference)
    except UnscoredError as error:
        raise InvalidRequestError(f"grader {name!r}: {error}", param="grader_config") from error
