"""Reads what a judge wrote: one verdict of the form that was asked for, or the reason why not.

The form is one JSON object that carries the request's ticket, a text that nobody but the judge has
seen. So a verdict that was quoted from the judged answer is never taken for the judge's own. There
is no default: whatever is not clearly one verdict has no number. It does not know what was judged.
"""

import json
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

TOP_SCORE = 10
SCORE_FIELDS = frozenset({"ticket", "reason", "score"})
RANKING_FIELDS = frozenset({"ticket", "reason", "ranking"})

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_REFUSAL = re.compile(
    r"(i'?m (very )?sorry|sorry,|i (can(no|')t|am (not able|unable)|won'?t|will not)|as an ai\b)",
    re.IGNORECASE,
)
_MAX_STARTS = 2_000
"""Of ``{`` in one reply that are tried: a hostile reply must not cost seconds."""


class Unread(StrEnum):
    """Why a reply is no verdict."""

    EMPTY = "empty"
    REFUSED = "refused"
    NO_VERDICT = "no_verdict"  # no JSON object in it
    NO_TICKET = "no_ticket"  # there are objects, but none is this request's: quoted ones, say
    CUT_OFF = "cut_off"  # it ends inside the verdict
    MALFORMED = "malformed"  # the verdict is no JSON, or stands inside something else
    TWO_VERDICTS = "two_verdicts"  # which of them holds?
    NO_REASON = "no_reason"
    NO_SCORE = "no_score"
    UNKNOWN_FIELD = "unknown_field"
    WRONG_TYPE = "wrong_type"
    NOT_FINITE = "not_finite"
    OUT_OF_RANGE = "out_of_range"
    UNCLEAR_SCALE = "unclear_scale"  # 0.8 is likely meant on a scale to 1, which was not asked for
    NO_IDS = "no_ids"
    DUPLICATED_ID = "duplicated_id"
    MISSING_ID = "missing_id"
    UNKNOWN_ID = "unknown_id"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreVerdict:
    """What a judge said of one answer.

    Example:
        ``ScoreVerdict(value=0.7, explanation="right, but …")`` or
        ``ScoreVerdict(value=None, unread=Unread.OUT_OF_RANGE)``
    """

    value: float | None  # in [0, 1]
    unread: Unread | None = None  # set exactly where there is no value
    explanation: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankingVerdict:
    """In which order a judge put a group.

    Example:
        ``RankingVerdict(ids=("k3f9a1", "b07c22"), explanation="the first names the …")``
    """

    ids: Sequence[str] | None  # the best first; all that were asked for, each once
    unread: Unread | None = None
    explanation: str = ""


class _UnreadError(ValueError):
    def __init__(self, reason: Unread) -> None:
        super().__init__(reason)
        self.reason = reason


Pairs: TypeAlias = list[tuple[str, Any]]


def read_score(text: str, *, ticket: str) -> ScoreVerdict:
    """Read ``{"ticket": …, "reason": …, "score": 0 to 10}``.

    Fences and words around it do not count. A number may stand in quotes.
    """
    try:
        fields = _verdict(text, ticket, SCORE_FIELDS)
        if "score" not in fields:
            raise _UnreadError(Unread.NO_SCORE)
        value, explanation = _score(fields["score"]), _reason(fields)
    except _UnreadError as error:
        return ScoreVerdict(value=None, unread=error.reason)
    return ScoreVerdict(value=value, explanation=explanation)


def read_ranking(text: str, *, ticket: str, ids: Collection[str]) -> RankingVerdict:
    """Read ``{"ticket": …, "reason": …, "ranking": [id, …]}``, the best first.

    It holds where it names every id once, and nothing else.
    """
    try:
        fields = _verdict(text, ticket, RANKING_FIELDS)
        if "ranking" not in fields:
            raise _UnreadError(Unread.NO_IDS)
        ranking, explanation = _ids(fields["ranking"], ids), _reason(fields)
    except _UnreadError as error:
        return RankingVerdict(ids=None, unread=error.reason)
    return RankingVerdict(ids=ranking, explanation=explanation)


def _verdict(text: str, ticket: str, known: Collection[str]) -> dict[str, Any]:
    """Return the one object with the ticket."""
    if not text.strip():
        raise _UnreadError(Unread.EMPTY)
    found = list(_objects(text))
    own = [pairs for pairs in found if ("ticket", ticket) in pairs]
    if not own:
        raise _UnreadError(_why_none(text, ticket, has_objects=bool(found)))
    if len(own) > 1 or len(dict(own[0])) < len(own[0]):  # a name twice: two verdicts in one
        raise _UnreadError(Unread.TWO_VERDICTS)
    fields = dict(own[0])
    if not fields.keys() <= set(known):
        raise _UnreadError(Unread.UNKNOWN_FIELD)
    return fields


def _objects(text: str) -> Iterator[Pairs]:
    """Yield the name-value pairs of each JSON object in a text; of nested ones the outermost."""
    decoder = json.JSONDecoder(object_pairs_hook=_Object)
    position = text.find("{")
    for _ in range(_MAX_STARTS):
        if position < 0:
            return
        try:
            found, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            yield found.pairs
        position = text.find("{", end)


class _Object:
    """An object of a reply; not a dict, which would forget a name that comes twice."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs


def _why_none(text: str, ticket: str, *, has_objects: bool) -> Unread:
    if ticket in text:  # its verdict was begun
        is_closed = text.rstrip().removesuffix("```").rstrip().endswith(("}", "]"))
        return Unread.MALFORMED if is_closed else Unread.CUT_OFF
    if has_objects:
        return Unread.NO_TICKET
    return Unread.REFUSED if _REFUSAL.match(text.strip()) else Unread.NO_VERDICT


def _reason(fields: dict[str, Any]) -> str:
    reason = fields.get("reason")
    if reason is not None and not isinstance(reason, str):
        raise _UnreadError(Unread.WRONG_TYPE)
    if not reason or not reason.strip():
        raise _UnreadError(Unread.NO_REASON)
    return reason.strip()


def _score(given: Any) -> float:
    if isinstance(given, str) and _NUMBER.fullmatch(given.strip()):
        given = float(given)
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise _UnreadError(Unread.WRONG_TYPE)
    if not 0 <= given <= TOP_SCORE:
        is_number = isinstance(given, int) or math.isfinite(given)
        raise _UnreadError(Unread.OUT_OF_RANGE if is_number else Unread.NOT_FINITE)
    if 0 < given < 1:
        raise _UnreadError(Unread.UNCLEAR_SCALE)
    return given / TOP_SCORE


def _ids(given: Any, ids: Collection[str]) -> Sequence[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise _UnreadError(Unread.WRONG_TYPE)
    if not given:
        raise _UnreadError(Unread.NO_IDS)
    if len(set(given)) < len(given):
        raise _UnreadError(Unread.DUPLICATED_ID)
    if not set(given) <= set(ids):
        raise _UnreadError(Unread.UNKNOWN_ID)
    if len(given) < len(ids):
        raise _UnreadError(Unread.MISSING_ID)
    return tuple(given)
