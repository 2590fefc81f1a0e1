"""The check that compares numbers, within a tolerance."""

import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from graders.checks import Check, Score, UnscoredError, read_config, reference_of, shown
from graders.types import Answer

_SIGN = r"(?:(?<![\w.)\]])[-−+])?"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
_NUMBER = re.compile(
    rf"(?<![\w.]){_SIGN}\s?(?:{_DIGITS}(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{{1,3}})?"
    rf"(?:\s?/\s?\d+(?![\d.,]*\d|/))?\s?%?(?![\w]*\d)"
)


class NumericConfig(BaseModel):
    """``grader_config`` of ``numeric``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tolerance: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """How far from the reference a number may be."""
    relative_tolerance: float = Field(default=1e-9, ge=0.0, lt=1.0)
    """The same as a share of the reference; the larger of the two holds."""
    only: bool = False
    """Whether the answer must hold one number only; else its last one counts."""


def score_numeric(answer: Answer) -> Score:
    """Score 1 when the answer's last number is the reference's within the tolerance, else 0.

    The last number is what an answer comes to; one that lists many gains nothing by it. Read are
    signs (− too), thousands separated by commas, decimals, exponents, fractions and percent (50% is
    0.5, in the reference too). An answer without a number scores 0.
    """
    config = read_config(NumericConfig, answer.config)
    wanted = _reference_number(answer)
    found = numbers_of(answer.text)
    evidence = {"numbers": found[-5:], "reference": wanted}
    if not found:
        return Score(value=0.0, explanation=f"no number in {shown(answer.text)!r}")
    if config.only and len(found) > 1:
        many = f"{len(found)} numbers in {shown(answer.text)!r}, one is asked for"
        return Score(value=0.0, explanation=many, evidence=evidence)
    allowed = max(config.tolerance, config.relative_tolerance * abs(wanted))
    difference = abs(found[-1] - wanted)
    is_right = difference <= allowed * (1 + 1e-9)
    said = f"{found[-1]:.15g} is {difference:.6g} from {wanted:.15g}, {allowed:.6g} is allowed"
    return Score(value=float(is_right), explanation=said, evidence=evidence)


def numbers_of(text: str) -> list[float]:
    """Return the numbers of a text, in their order; what is too large for a float is left out."""
    found = (_value(match.group()) for match in _NUMBER.finditer(text))
    return [value for value in found if value is not None]


def _value(text: str) -> float | None:
    plain = re.sub(r"[\s,]", "", text).replace("−", "-")
    is_percent = plain.endswith("%")
    above, _, below = plain.rstrip("%").partition("/")
    try:
        value = float(above) / (float(below) if below else 1.0)
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return (value / 100 if is_percent else value) if math.isfinite(value) else None


def _reference_number(answer: Answer) -> float:
    reference = reference_of(answer)
    found = numbers_of(reference)
    if len(found) != 1:
        raise UnscoredError(f"the reference {shown(reference)!r} holds {len(found)} numbers, not 1")
    return found[0]


def _check_config(config: Mapping[str, Any], reference: str | None) -> None:
    read_config(NumericConfig, config)
    _reference_number(Answer(messages=(), message={}, reference=reference))


NUMERIC = Check(name="numeric", score=score_numeric, needs_reference=True, validate=_check_config)
