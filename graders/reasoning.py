"""reasoning-gym: the tasks it generates, and its own scorer as a check.

The only module that knows the library, which is loaded on first use (2 s). Knows nothing of task
specs.

Some of its scorers hand the answer, or parts of the stored entry, to ``eval`` or to sympy's parser
(which evaluates too). Those datasets are refused: an answer is data, and must not run here.
"""

import dataclasses
import difflib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from graders.checks import Check, Score, UnscoredError, shown
from graders.types import Answer
from memory.errors import InvalidRequestError

REFUSED = frozenset(
    {
        "binary_matrix",
        "bitwise_arithmetic",
        "composite",  # hands on to any of the others
        "countdown",
        "intermediate_integration",
        "n_queens",
        "number_sorting",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
_NOT_SETTINGS = frozenset({"seed", "size", "data_file"})  # a file name reads any file
_ATTEMPTS_PER_TASK = 10  # small families repeat: 100 single-digit products exist


class MissingLibraryError(InvalidRequestError):
    """reasoning-gym is not installed."""

    code = "not_installed"


def generate(
    dataset: str, *, n: int, seed: int, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Generate ``n`` entries with different questions, fewer when the family has no more.

    Args:
        dataset: reasoning-gym's name, such as ``"products"``.
        n: How many.
        seed: The same seed and settings give the same entries.
        settings: Fields of the dataset's config, such as ``{"min_digits": "1"}``: values, or text
            that is converted to the field's type; a list as text is JSON or separated by commas.

    Returns:
        The library's entries (``question``, ``answer``, ``metadata``) as plain JSON values.

    Raises:
        InvalidRequestError: Unknown or refused dataset, unknown or malformed setting, or entries
            that JSON does not keep; the message lists what is close.
        MissingLibraryError: reasoning-gym is not installed.
    """
    dataset_class, config_class = _find(dataset)
    values = _typed(dataset, config_class, settings)
    try:
        # The library checks its settings with ``assert``.
        generator = dataset_class(config_class(**values, seed=seed, size=n * _ATTEMPTS_PER_TASK))
        entries = _distinct(generator, n)
    except (AssertionError, ValueError, TypeError, IndexError) as error:
        raise InvalidRequestError(
            f"reasoning-gym:{dataset} refuses these settings: {error}", param="set"
        ) from error
    _require_json_safe(dataset, generator, entries[:1])
    return [json.loads(json.dumps(entry)) for entry in entries]


def score_reasoning_gym(answer: Answer) -> Score:
    """Score with the dataset's own ``score_answer``.

    Reads ``config["dataset"]`` and ``config["entry"]``, an entry as ``generate`` gives it. White
    space at either end of the answer does not count.
    """
    name, entry = answer.config.get("dataset"), answer.config.get("entry")
    if not isinstance(name, str) or not isinstance(entry, dict):
        raise UnscoredError("grader_config needs dataset (text) and entry (object)")
    try:
        dataset_class, config_class = _find(name)
    except InvalidRequestError as error:
        raise UnscoredError(error.message) from error
    value = float(dataset_class(config_class()).score_answer(answer.text.strip(), entry))
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        raise UnscoredError(f"reasoning-gym:{name} scored {value}, outside [0, 1]")
    expected = "" if entry.get("answer") is None else f", expected {shown(str(entry['answer']))!r}"
    return Score(value=value, explanation=f"{shown(answer.text)!r}{expected}")


REASONING_GYM = Check(
    name="reasoning_gym", score=score_reasoning_gym, needs_config=("dataset", "entry")
)


def _find(name: str) -> tuple[Any, Any]:
    """Return the dataset's class and its config's class."""
    try:
        from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingLibraryError(
            "reasoning-gym is not installed; pip install 'denizen[tasks]'"
        ) from error
    if name in REFUSED:
        raise InvalidRequestError(
            f"reasoning-gym:{name} is refused: its scorer runs text as code", param="from"
        )
    if name not in DATASETS:
        close = _close(name, sorted(DATASETS))
        raise InvalidRequestError(f"reasoning-gym has no dataset {name!r}{close}", param="from")
    found: tuple[Any, Any] = DATASETS[name]
    return found


def _typed(dataset: str, config_class: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    types = get_type_hints(config_class)
    known = [f.name for f in dataclasses.fields(config_class) if f.name not in _NOT_SETTINGS]
    values = {}
    for key, given in settings.items():
        if key not in known:
            close = _close(key, known)
            raise InvalidRequestError(
                f"reasoning-gym:{dataset} has no setting {key!r}{close}", param=f"set.{key}"
            )
        try:
            values[key] = _convert(types[key], given)
        except ValueError as error:
            detail = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise InvalidRequestError(
                f"reasoning-gym:{dataset} {key}={given!r}: {detail}", param=f"set.{key}"
            ) from error
    return values


def _convert(type_: Any, given: Any) -> Any:
    if isinstance(given, str) and given.lstrip().startswith("["):
        given = json.loads(given)
    elif isinstance(given, str) and (get_origin(type_) or type_) in {list, tuple, Sequence}:
        given = [part.strip() for part in given.split(",")]
    return TypeAdapter(type_).validate_python(given)


def _distinct(generator: Any, n: int) -> list[dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = {}
    for entry in _all(generator):
        entries.setdefault(entry["question"], entry)
        if len(entries) == n:
            break
    return list(entries.values())


def _all(generator: Any) -> Iterator[dict[str, Any]]:
    for number in range(len(generator)):
        yield generator[number]


def _require_json_safe(dataset: str, generator: Any, entries: list[dict[str, Any]]) -> None:
    """Refuse a family whose scorer needs what JSON does not keep, such as tuples."""
    for entry in entries:
        try:
            stored = json.loads(json.dumps(entry))
        except TypeError as error:
            raise InvalidRequestError(
                f"reasoning-gym:{dataset} cannot be stored: {error}", param="from"
            ) from error
        fresh = generator.score_answer(entry["answer"], entry)
        if generator.score_answer(entry["answer"], stored) != fresh:
            raise InvalidRequestError(
                f"reasoning-gym:{dataset} cannot be stored: its scorer needs more than JSON keeps",
                param="from",
            )


def _close(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; there are {', '.join(known)}"
