"""What a check is: a grader whose verdict follows from a rule.

Each rule is a pure function from an answer to a ``Score``; ``Check`` runs it off the event loop and
turns what it cannot score into a grade without a value. The rules live in modules by what they look
at; here is what they share. Knows nothing of people, judges, or of how grades are merged.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from graders.types import Answer
from memory.types import Grade, GradeKind

logger = logging.getLogger(__name__)
M = TypeVar("M", bound=BaseModel)

_MAX_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What a rule found."""

    value: float  # in [0, 1]
    explanation: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class UnscoredError(ValueError):
    """The rule cannot say how good the answer is; the message is the grade's reason."""


def _anything(_config: Mapping[str, Any], _reference: str | None) -> None:
    """Find no fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A rule as a ``Grader``."""

    name: str
    score: Callable[[Answer], Score]
    needs_reference: bool = False
    needs_config: tuple[str, ...] = ()  # keys that the rule reads from ``Answer.config``
    validate: Callable[[Mapping[str, Any], str | None], None] = _anything
    """Raises ``UnscoredError`` where config and reference are such that nothing could be scored."""
    timeout_s: float | None = None  # for rules that are other people's code
    version: str = "1"
    kind: GradeKind = GradeKind.CHECK

    async def grade(self, answer: Answer) -> Grade:
        """Score an answer; a rule that fails leaves it unscored and says why."""
        try:
            work = asyncio.to_thread(self.score, answer)
            score = await asyncio.wait_for(work, self.timeout_s)
            return self._grade(score.value, explanation=score.explanation, evidence=score.evidence)
        except UnscoredError as error:
            return self._grade(None, unscored_reason=str(error))
        except TimeoutError:
            return self._grade(None, unscored_reason=f"it ran longer than {self.timeout_s} s")
        except Exception as error:
            # A scorer is other people's code: its fault is a missing grade, not a failed request.
            logger.exception("grader %r failed", self.name)
            return self._grade(None, unscored_reason=f"{type(error).__name__}: {shown(str(error))}")

    def _grade(self, value: float | None, **fields: Any) -> Grade:
        return Grade(kind=self.kind, grader=self.name, version=self.version, value=value, **fields)


def shown(text: str) -> str:
    """Shorten a text for an explanation."""
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    return text[:_MAX_SHOWN_CHARACTERS] + "…"


def reference_of(answer: Answer) -> str:
    """Return the right answer.

    Raises:
        UnscoredError: there is none.
    """
    if answer.reference is None:
        raise UnscoredError("no reference to compare with")
    if not answer.reference.strip():
        raise UnscoredError("the reference is empty")
    return answer.reference


def config_value(config: Mapping[str, Any], key: str, type_: type) -> Any:
    """Return one value of a task's ``grader_config``.

    Raises:
        UnscoredError: it is missing, or of another type.
    """
    value = config.get(key)
    if not isinstance(value, type_):
        raise UnscoredError(f"grader_config.{key} is missing or is not a {type_.__name__}")
    return value


def read_config(form: type[M], config: Mapping[str, Any]) -> M:
    """Read a whole ``grader_config``.

    Raises:
        UnscoredError: its first fault.
    """
    try:
        return form.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(["grader_config", *map(str, first["loc"])])
        raise UnscoredError(f"{key}: {first['msg']}") from error
