"""The check that compares an answer with a JSON schema."""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import jsonschema  # type: ignore[import-untyped]
import referencing

from graders.checks import Check, Score, UnscoredError, config_value, shown
from graders.text_checks import search
from graders.types import Answer


def score_json_schema(answer: Answer) -> Score:
    """Score 1 when the whole answer is one JSON document that ``config["schema"]`` accepts, else 0.

    The schema's draft is the one its ``$schema`` names, 2020-12 without. Unscored when the schema
    itself is malformed, refers to another document, or holds ``patternProperties``.
    """
    schema = config_value(answer.config, "schema", dict)
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
    if isinstance(instance, str) and search(pattern, instance) is None:
        yield jsonschema.ValidationError(f"{shown(instance)!r} does not match {pattern!r}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_schema(config: Mapping[str, Any], _reference: str | None) -> None:
    _validator(config_value(config, "schema", dict))


JSON_SCHEMA = Check(
    name="json_schema", score=score_json_schema, needs_config=("schema",), validate=_check_schema
)
