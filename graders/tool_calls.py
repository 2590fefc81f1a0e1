"""The check that compares the tools an answer calls, and with what, with those that are right."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from graders.checks import Check, Score, read_config, shown
from graders.types import Answer
from memory.types import Message


class Expected(BaseModel):
    """One call that is right: ``{"name": "search", "arguments": {"query": "x"}}``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str = Field(min_length=1)
    """The tool's name."""
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Its arguments, as a JSON object."""
    any_of: dict[str, list[JsonValue]] = Field(default_factory=dict)
    """For an argument, the values that are all right."""
    optional: list[str] = Field(default_factory=list)
    """Arguments that may be there or not, with any value."""


class ToolCallsConfig(BaseModel):
    """``grader_config`` of ``tool_calls``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    calls: list[Expected]
    """The calls that are right; an empty list: no tool is to be called."""
    any_order: bool = True
    """Whether they may come in another order."""
    allow_more: bool = False
    """Whether further calls may stand beside them."""


def score_tool_calls(answer: Answer) -> Score:
    """Score 1 when the answer calls the right tools with the right arguments, else 0.

    Arguments are compared as JSON values: the order of keys does not count, 2 equals 2.0, and text
    counts to the letter. Arguments that are no JSON object match nothing.
    """
    config = read_config(ToolCallsConfig, answer.config)
    made = _made(answer.message)
    names = [name for name, _ in made]
    evidence = {"called": [{"name": n, "arguments": a} for n, a in made][:20]}
    missing = _missing(config, made)
    if missing is not None:
        said = f"called {shown(', '.join(names) or 'nothing')!r}: {missing}"
        return Score(value=0.0, explanation=said, evidence=evidence)
    if len(made) > len(config.calls) and not config.allow_more:
        said = f"{len(made)} calls, {len(config.calls)} are right: {shown(', '.join(names))!r}"
        return Score(value=0.0, explanation=said, evidence=evidence)
    return Score(value=1.0, explanation=f"called {shown(', '.join(names))!r}", evidence=evidence)


def _made(message: Message) -> list[tuple[str, Any]]:
    made = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        raw = function.get("arguments")
        try:
            arguments = json.loads(raw or "{}") if isinstance(raw, str) or raw is None else raw
        except ValueError:
            arguments = raw
        made.append((str(function.get("name")), arguments))
    return made


def _missing(config: ToolCallsConfig, made: Sequence[tuple[str, Any]]) -> str | None:
    """Say which right call was not made; None: all were."""
    if config.any_order:
        return _unmatched(config.calls, made)
    place = 0
    for expected in config.calls:
        while place < len(made) and not _matches(expected, *made[place]):
            if not config.allow_more:
                return _lacks(expected)
            place += 1
        if place == len(made):
            return _lacks(expected)
        place += 1
    return None


def _unmatched(calls: Sequence[Expected], made: Sequence[tuple[str, Any]]) -> str | None:
    """Give each right call one that was made (augmenting paths, for several may fit several)."""
    owner: dict[int, int] = {}  # call that was made -> right call

    def place(number: int, seen: set[int]) -> bool:
        for spot, call in enumerate(made):
            if spot in seen or not _matches(calls[number], *call):
                continue
            seen.add(spot)
            if spot not in owner or place(owner[spot], seen):
                owner[spot] = number
                return True
        return False

    for number, expected in enumerate(calls):
        if not place(number, set()):
            return _lacks(expected)
    return None


def _matches(expected: Expected, name: str, arguments: Any) -> bool:
    if name != expected.name or not isinstance(arguments, dict):
        return False
    given = {key: value for key, value in arguments.items() if key not in expected.optional}
    wanted = {k: v for k, v in expected.arguments.items() if k not in expected.optional}
    if given.keys() != wanted.keys() | expected.any_of.keys():
        return False
    return all(
        any(_equal(value, right) for right in expected.any_of.get(key, [wanted.get(key)]))
        for key, value in given.items()
    )


def _equal(value: Any, right: Any) -> bool:
    """Compare JSON values; true is not 1."""
    if isinstance(value, bool) or isinstance(right, bool):
        return value is right
    if isinstance(value, dict) and isinstance(right, dict):
        return value.keys() == right.keys() and all(_equal(value[k], right[k]) for k in value)
    if isinstance(value, list) and isinstance(right, list):
        return len(value) == len(right) and all(map(_equal, value, right))
    return bool(value == right)


def _lacks(expected: Expected) -> str:
    arguments = json.dumps(expected.arguments, ensure_ascii=False)
    return f"no call of {expected.name} as in {shown(arguments)}"


def _check_config(config: Mapping[str, Any], _reference: str | None) -> None:
    read_config(ToolCallsConfig, config)


TOOL_CALLS = Check(
    name="tool_calls", score=score_tool_calls, needs_config=("calls",), validate=_check_config
)
