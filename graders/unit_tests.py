"""The check that runs an answer's Python code against tests, in the sandbox.

What is right is compared here, outside: the code is never told the expected values, so it cannot
pass by returning them. A test that is an assertion runs beside the code, which could cheat it by
changing what the assertion calls; prefer ``call`` and ``expected``.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from graders import sandbox
from graders.checks import Check, Score, UnscoredError, read_config, shown
from graders.sandbox import Limits
from graders.types import Answer

_FENCE = re.compile(r"```[ \t]*(?:python|py|python3)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL | re.I)
_MAX_TESTS, _MAX_SOURCE = 100, 100_000

_PROGRAM = """
import json
scope, told = {"__name__": "answer"}, []
def plain(value):
    json.dumps(value, allow_nan=False)
    return value
try:
    exec(compile(given["code"], "answer.py", "exec"), scope)
    fault = None
except BaseException as error:
    fault = f"{type(error).__name__}: {error}"[:300]
for source, is_call in [] if fault else given["tests"]:
    try:
        if is_call:
            told.append({"value": plain(eval(compile(source, "test.py", "eval"), scope))})
        else:
            exec(compile(source, "test.py", "exec"), scope)
            told.append({"held": True})
    except BaseException as error:
        told.append({"error": f"{type(error).__name__}: {error}"[:300]})
reply({"fault": fault, "told": told})
"""


class UnitTest(BaseModel):
    """One test: ``{"call": "add(2, 3)", "expected": 5}`` or ``{"check": "assert add(2, 3) == 5"}``.

    Tuples count as lists, as JSON has it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    call: str | None = Field(default=None, min_length=1, max_length=2_000)
    """An expression over what the answer defines."""
    expected: JsonValue = None
    """Its value."""
    tolerance: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """How far a number may be from it."""
    check: str | None = Field(default=None, min_length=1, max_length=10_000)
    """Statements that raise where the answer is wrong."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.call is None) == (self.check is None):
            raise ValueError("give either call and expected, or check")
        if self.call is not None and "expected" not in self.model_fields_set:
            raise ValueError("give expected, the value of call")
        source, mode = self.source
        try:
            compile(source, "test.py", mode)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{shown(source)!r} is no Python: {error}") from error
        return self

    @property
    def source(self) -> tuple[str, str]:
        """Its text, and whether it is an expression or statements."""
        return (self.call, "eval") if self.call is not None else (self.check or "", "exec")


class UnitTestsConfig(BaseModel):
    """``grader_config`` of ``unit_tests``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tests: list[UnitTest] = Field(min_length=1, max_length=_MAX_TESTS)
    """All are run; the value is the share that passes."""
    deadline_s: float = Field(default=5.0, gt=0.0, le=30.0)
    """Of all together."""


def score_unit_tests(answer: Answer, *, allow_without_namespaces: bool = False) -> Score:
    """Score the share of tests that the answer's code passes.

    The code is the answer's fenced blocks, joined, or all of it where there are none. Code that
    does not run, ends early, or runs past its deadline passes none: that is its fault.

    Raises:
        UnscoredError: it cannot be run apart from everything else here.
    """
    config = read_config(UnitTestsConfig, answer.config)
    code = code_of(answer.text)
    if len(code) > _MAX_SOURCE:
        return Score(value=0.0, explanation=f"{len(code)} characters of code are too many")
    if not sandbox.has_namespaces() and not allow_without_namespaces:
        raise UnscoredError(
            "code is not run: Linux namespaces (unshare) are not available here, and "
            "graders.run_code_without_namespaces is off"
        )
    given = {
        "code": code,
        "tests": [(test.source[0], test.call is not None) for test in config.tests],
    }
    ran = sandbox.run(
        _PROGRAM,
        given,
        isolation="namespaces" if sandbox.has_namespaces() else "limits",
        limits=Limits(deadline_s=config.deadline_s),
    )
    faults = _faults(config.tests, ran.reply, ran.reason)
    num, passed = len(config.tests), sum(fault is None for fault in faults)
    first = next((fault for fault in faults if fault is not None), None)
    return Score(
        value=passed / num,
        explanation=f"{passed} of {num} tests passed" + (f"; {first}" if first else ""),
        evidence={"faults": faults[:20], "isolation": ran.isolation},
    )


def code_of(text: str) -> str:
    """Return the Python of an answer."""
    blocks = [match.group(1) for match in _FENCE.finditer(text)]
    return "\n\n".join(blocks) if blocks else text


def _faults(tests: Sequence[UnitTest], reply: Any, reason: str | None) -> list[str | None]:
    """Say of each test why it failed; None: it passed."""
    told = reply.get("told") if isinstance(reply, dict) else None
    whole = reason or (reply.get("fault") if isinstance(reply, dict) else None)
    if whole or not isinstance(told, list) or len(told) != len(tests):
        return [shown(str(whole or "it did not come to its end"))] * len(tests)
    return [_fault(test, one) for test, one in zip(tests, told, strict=True)]


def _fault(test: UnitTest, told: Any) -> str | None:
    what = shown(test.source[0])
    if not isinstance(told, dict) or "error" in told:
        error = told.get("error") if isinstance(told, dict) else "no result"
        return f"{what}: {shown(str(error))}"
    if test.check is not None:
        return None if told.get("held") is True else f"{what}: no result"
    if "value" in told and _equal(told["value"], test.expected, test.tolerance):
        return None
    return f"{what} is {shown(json.dumps(told.get('value')))}"


def _equal(value: Any, right: Any, tolerance: float) -> bool:
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, int | float) and isinstance(right, int | float):
        return abs(value - right) <= tolerance
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(
            _equal(one, other, tolerance) for one, other in zip(value, right, strict=True)
        )
    if isinstance(value, dict) and isinstance(right, dict):
        return value.keys() == right.keys() and all(
            _equal(value[key], right[key], tolerance) for key in value
        )
    return bool(value == right)


def _check_config(config: Mapping[str, Any], _reference: str | None) -> None:
    read_config(UnitTestsConfig, config)


def unit_tests(*, allow_without_namespaces: bool = False) -> Check:
    """Make the check; without namespaces it runs code only where that is allowed."""
    return Check(
        name="unit_tests",
        score=functools.partial(
            score_unit_tests, allow_without_namespaces=allow_without_namespaces
        ),
        needs_config=("tests",),
        validate=_check_config,
    )


UNIT_TESTS = unit_tests()
