"""Checks that an operator writes: Python functions named in the settings.

They run in the service's process with all its rights, so only who may write the settings can name
one; a task or a request can only use a name that stands there.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from graders.checks import Check, Score, UnscoredError
from graders.types import Answer
from memory.errors import ConfigError

Function: TypeAlias = Callable[[str, str | None, Mapping[str, Any]], Any]
"""``score(answer, reference, config)``: a number in [0, 1], a boolean, None where it cannot say, or
``(value, explanation)``.
"""


class FunctionsConfig(BaseModel):
    """Which functions grade, and what code may be run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    functions: dict[str, str] = Field(default_factory=dict)
    """Graders of your own, by name: the import path of a function ``score(answer, reference,
    config)``, such as ``"mygraders.invoices:score"``. It runs in the service with all its rights.
    """
    function_timeout_s: float = Field(default=30.0, gt=0.0)
    """Seconds after which such a function's grade is missing; it is not stopped."""
    run_code_without_namespaces: bool = False
    """Whether the code in answers is run for unit tests also where Linux namespaces are not to be
    had, with limits alone: it could then write what the service may write, and use the network.
    """


def load(config: FunctionsConfig) -> list[Check]:
    """Import the functions and make checks of them.

    Raises:
        ConfigError: one cannot be imported, or is no function; names it.
    """
    return [
        Check(
            name=name,
            score=partial(_score, _find(name, path)),
            timeout_s=config.function_timeout_s,
            version=path,
        )
        for name, path in config.functions.items()
    ]


def _find(name: str, path: str) -> Function:
    where = f"graders.functions.{name}"
    module, _, attribute = path.partition(":")
    if not name.isidentifier() or not module or not attribute:
        raise ConfigError(f"{where} is {path!r}; expected NAME = 'package.module:function'")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the operator's code
        raise ConfigError(f"{where}: cannot import {path!r}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{where}: {path!r} is no function")
    function: Function = found
    return function


def _score(function: Function, answer: Answer) -> Score:
    found = function(answer.text, answer.reference, answer.config)
    value, explanation = found if isinstance(found, tuple) and len(found) == 2 else (found, "")
    if value is None:
        raise UnscoredError(str(explanation) or "the function could not say")
    if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= 1:
        raise UnscoredError(f"the function returned {value!r}, no number from 0 to 1")
    return Score(value=float(value), explanation=str(explanation))
