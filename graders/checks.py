"""Checks: graders whose verdict follows from a rule.

Each rule is a pure function from an answer to a ``Score``; ``Check`` runs it off the event loop and
turns what it cannot score into a grade without a value. The rules know nothing of people, judges,
or of how grades are merged.
"""

import asyncio
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jsonschema  # type: ignore[import-untyped]
import referencing
import regex  # type: ignore[import-untyped]

from graders.types import Answer
from memory.types import Grade, GradeKind

logger = logging.getLogger(__name__)

_REGEX_TIMEOUT_S = 0.5  # a pattern of ordinary shape needs microseconds for an answer
_MAX_PATTERN_CHARACTERS = 1_000
_MAX_SHOWN_CHARACTERS = 80

_NO_DIGIT_GROUP_BEFORE = r"(?<!\d,)"
_NO_SIGN_BEFORE = r"(?<!(?<!\w)[-−])"


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What a rule found."""

    value: float  # in [0, 1]
    explanation: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


class UnscoredError(ValueError):
    """The rule cannot say how good the answer is; the message is the grade's reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A rule as a ``Grader``."""

    name: str
    score: Callable[[Answer], Score]
    needs_reference: bool = False
    needs_config: tuple[str, ...] = ()  # keys that the rule reads from ``Answer.config``
    version: str = "1"
    kind: GradeKind = GradeKind.CHECK

    async def grade(self, answer: Answer) -> Grade:
        """Score an answer; a rule that fails leaves it unscored and says why."""
        try:
            score = await asyncio.to_thread(self.score, answer)
            return self._grade(score.value, explanation=score.explanation, evidence=score.evidence)
        except UnscoredError as error:
            return self._grade(None, unscored_reason=str(error))
        except Exception as error:
            # A scorer is other people's code: its fault is a missing grade, not a failed request.
            logger.exception("grader %r failed", self.name)
            return self._grade(None, unscored_reason=f"{type(error).__name__}: {shown(str(error))}")

    def _grade(self, value: float | None, **fields: Any) -> Grade:
        return Grade(kind=self.kind, grader=self.name, version=self.version, value=value, **fields)


def score_exact(answer: Answer) -> Score:
    """Score 1 when answer and reference are the same text, else 0.

    Case, runs of white space, and white space at either end do not count.
    """
    reference = _reference_of(answer)
    equal = _normalised(answer.text) == _normalised(reference)
    said = "equals" if equal else "is not"
    return Score(
        value=float(equal), explanation=f"{shown(answer.text)!r} {said} {shown(reference)!r}"
    )


def score_contains(answer: Answer) -> Score:
    """Score an answer that contains the reference by its brevity.

    ``sqrt(len(reference) / len(answer))`` when the answer contains the reference as a whole token,
    so 1 when it is the reference and nothing else; 0 when it does not. In characters, after
    normalising as ``score_exact`` does.

    reasoning-gym's own scorer (``ProceduralDataset.score_answer``) takes the ratio itself and any
    substring. Here "12" is not found in "112", "12.5", "1,12" or "-12": a wrong number earns
    nothing. The root lets a right answer among some words earn visibly more than a wrong one,
    while an answer that lists many numbers stays worth less than one honest guess. (Both faults
    were seen in training: with the bare ratio a policy grew short before it grew right; with a
    fixed credit for containing, it listed numbers.)
    """
    reference = _reference_of(answer)
    wanted, said = _normalised(reference), _normalised(answer.text)
    if not _whole_token(wanted).search(said):
        return Score(
            value=0.0, explanation=f"{shown(reference)!r} is not in {shown(answer.text)!r}"
        )
    return Score(
        value=math.sqrt(len(wanted) / len(said)),
        explanation=f"{shown(reference)!r} found in {len(said)} characters: {shown(answer.text)!r}",
    )


def score_regex(answer: Answer) -> Score:
    """Score 1 when ``config["pattern"]`` is found anywhere in the answer, else 0.

    Anchor the pattern to match the whole. Syntax is Python's. Unscored when the pattern is refused
    (malformed, over 1,000 characters) or runs longer than 0.5 s, as patterns that backtrack
    exponentially do.
    """
    pattern = _config_value(answer, "pattern", str)
    found = _search(pattern, answer.text)
    if found is None:
        return Score(value=0.0, explanation=f"{pattern!r} is not in {shown(answer.text)!r}")
    return Score(value=1.0, explanation=f"{pattern!r} found: {shown(found)!r}")


def score_json_schema(answer: Answer) -> Score:
    """Score 1 when the whole answer is one JSON document that ``config["schema"]`` accepts, else 0.

    The schema's draft is the one its ``$schema`` names, 2020-12 without. Unscored when the schema
    itself is malformed, refers to another document, or holds ``patternProperties``.
    """
    schema = _config_value(answer, "schema", dict)
    validator = _validator(schema)
    try:
        document = json.loads(answer.text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Score(value=0.0, explanation=f"not JSON ({error}): {shown(answer.text)!r}")
    fault = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if fault is None:
        return Score(value=1.0, explanation="the schema accepts it")
    return Score(
        value=0.0,
        explanation=f"at {fault.json_path}: {shown(fault.message)}",
        evidence={"path": fault.json_path, "keyword": fault.validator},
    )


EXACT = Check(name="exact", score=score_exact, needs_reference=True)
CONTAINS = Check(name="contains", score=score_contains, needs_reference=True)
REGEX = Check(name="regex", score=score_regex, needs_config=("pattern",))
JSON_SCHEMA = Check(name="json_schema", score=score_json_schema, needs_config=("schema",))


def shown(text: str) -> str:
    """Shorten a text for an explanation."""
    if len(text) <= _MAX_SHOWN_CHARACTERS:
        return text
    return text[:_MAX_SHOWN_CHARACTERS] + "…"


def _normalised(text: str) -> str:
    return " ".join(text.split()).casefold()


def _reference_of(answer: Answer) -> str:
    if answer.reference is None:
        raise UnscoredError("no reference to compare with")
    if not answer.reference.strip():
        raise UnscoredError("the reference is empty")
    return answer.reference


def _config_value(answer: Answer, key: str, type_: type) -> Any:
    value = answer.config.get(key)
    if not isinstance(value, type_):
        raise UnscoredError(f"grader_config.{key} is missing or is not a {type_.__name__}")
    return value


def _whole_token(wanted: str) -> "re.Pattern[str]":
    pattern = rf"(?<!\w){re.escape(wanted)}(?!\w)"
    if wanted[0].isdigit():
        # Neither a fraction's or a group's tail (0.12, 1,12), nor the number after a minus sign.
        pattern = rf"(?<![.]){_NO_DIGIT_GROUP_BEFORE}{_NO_SIGN_BEFORE}{pattern}"
    if wanted[-1].isdigit():
        pattern = rf"{pattern}(?![.,]\d)"
    return re.compile(pattern)


def _search(pattern: str, text: str) -> str | None:
    if len(pattern) > _MAX_PATTERN_CHARACTERS:
        raise UnscoredError(f"the pattern is longer than {_MAX_PATTERN_CHARACTERS} characters")
    try:
        # ``concurrent`` lets other threads run meanwhile; ``re`` has neither that nor a time-out.
        found = regex.search(pattern, text, timeout=_REGEX_TIMEOUT_S, concurrent=True)
    except regex.error as error:
        raise UnscoredError(f"the pattern is malformed: {error}") from error
    except TimeoutError as error:
        raise UnscoredError(f"the pattern ran longer than {_REGEX_TIMEOUT_S} s") from error
    return None if found is None else str(found.group())


def _validator(schema: dict[str, Any]) -> Any:
    if '"patternProperties"' in json.dumps(schema):
        raise UnscoredError("schemas with patternProperties are not supported")
    draft = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        draft.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UnscoredError(f"the schema is malformed: {shown(error.message)}") from error
    bounded = jsonschema.validators.extend(draft, {"pattern": _check_pattern})
    # An empty registry: the default one fetches a foreign ``$ref`` from the network.
    return bounded(schema, registry=referencing.Registry())


def _check_pattern(_validator: Any, pattern: str, instance: object, _schema: Any) -> Any:
    if isinstance(instance, str) and _search(pattern, instance) is None:
        yield jsonschema.ValidationError(f"{shown(instance)!r} does not match {pattern!r}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
