"""Checks that compare an answer's text: with a reference, or with a pattern."""

import math
import re
import string
import unicodedata
from collections.abc import Mapping
from typing import Any

import regex  # type: ignore[import-untyped]

from graders.checks import Check, Score, UnscoredError, config_value, reference_of, shown
from graders.types import Answer

_REGEX_TIMEOUT_S = 0.5  # a pattern of ordinary shape needs microseconds for an answer
_MAX_PATTERN_CHARACTERS = 1_000

_NO_DIGIT_GROUP_BEFORE = r"(?<!\d,)"
_NO_SIGN_BEFORE = r"(?<!(?<!\w)[-−])"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = dict.fromkeys(map(ord, string.punctuation + "“”‘’…–—"), " ")


def score_exact(answer: Answer) -> Score:
    """Score 1 when answer and reference are the same text, else 0.

    Case, runs of white space, and white space at either end do not count.
    """
    reference = reference_of(answer)
    equal = _normalised(answer.text) == _normalised(reference)
    said = "equals" if equal else "is not"
    return Score(
        value=float(equal), explanation=f"{shown(answer.text)!r} {said} {shown(reference)!r}"
    )


def score_normalised(answer: Answer) -> Score:
    """Score 1 when answer and reference are the same words, else 0.

    Case, punctuation, the articles a, an and the, accents of compatibility (full-width digits,
    ligatures) and white space do not count, as in SQuAD's evaluation (arXiv:1606.05250). A sign
    before a digit and what stands inside a number do: "-5" is not "5", and "1.5" is not "15".
    """
    reference = reference_of(answer)
    wanted, said = _words(reference), _words(answer.text)
    if not wanted:
        raise UnscoredError(f"the reference {shown(reference)!r} is punctuation only")
    equal = wanted == said
    return Score(
        value=float(equal),
        explanation=f"{shown(said)!r} {'equals' if equal else 'is not'} {shown(wanted)!r}",
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
    reference = reference_of(answer)
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
    pattern = config_value(answer.config, "pattern", str)
    found = search(pattern, answer.text)
    if found is None:
        return Score(value=0.0, explanation=f"{pattern!r} is not in {shown(answer.text)!r}")
    return Score(value=1.0, explanation=f"{pattern!r} found: {shown(found)!r}")


def search(pattern: str, text: str) -> str | None:
    """Return what a pattern finds in a text, or None.

    Raises:
        UnscoredError: the pattern is malformed, too long, or runs too long.
    """
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


def _normalised(text: str) -> str:
    return " ".join(text.split()).casefold()


def _words(text: str) -> str:
    """Return a text in the form that ``score_normalised`` compares."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    kept = re.sub(r"(?<![\w.])-(?=\d)", "\x00minus", plain)
    kept = re.sub(r"(?<=\d)\.(?=\d)", "\x00point", re.sub(r"(?<=\d),(?=\d{3}\b)", "", kept))
    bare = kept.translate(_PUNCTUATION).replace("\x00minus", "-").replace("\x00point", ".")
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _whole_token(wanted: str) -> "re.Pattern[str]":
    pattern = rf"(?<!\w){re.escape(wanted)}(?!\w)"
    if wanted[0].isdigit():
        # Neither a fraction's or a group's tail (0.12, 1,12), nor the number after a minus sign.
        pattern = rf"(?<![.]){_NO_DIGIT_GROUP_BEFORE}{_NO_SIGN_BEFORE}{pattern}"
    if wanted[-1].isdigit():
        pattern = rf"{pattern}(?![.,]\d)"
    return re.compile(pattern)


def _check_pattern(config: Mapping[str, Any], _reference: str | None) -> None:
    search(config_value(config, "pattern", str), "")


EXACT = Check(name="exact", score=score_exact, needs_reference=True)
NORMALISED = Check(name="normalised", score=score_normalised, needs_reference=True)
CONTAINS = Check(name="contains", score=score_contains, needs_reference=True)
REGEX = Check(name="regex", score=score_regex, needs_config=("pattern",), validate=_check_pattern)
