"""What moves a judge although it should not: the seat of an answer, and its length.

Pure statistics over what was observed. An alarm needs both: an effect large enough to matter, and
odds of less than 1 in 100 that chance alone shows it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.stats import binomtest, norm, rankdata  # type: ignore[import-untyped]

from graders.agreement import CUT, Floats, Pair

SIGNIFICANCE = 0.01
MIN_SEAT_SHARE = 0.1
"""Of swapped verdicts decided by the seat. Judges in use flip about 13 % of them, to either side
(FastChat 3911: 12.9 %); this is one side's surplus.
"""
MIN_LENGTH_CORRELATION = 0.25
MIN_IN_STRATUM = 5  # answers of one quality; fewer say nothing of length


class Swap(StrEnum):
    """What a judge said of two answers that it saw in both orders."""

    CONSISTENT = "consistent"  # the same answer won both times
    FIRST = "first"  # the first seat won both times
    SECOND = "second"
    UNDECIDED = "undecided"  # at least one of the two verdicts was none


@dataclass(frozen=True, kw_only=True, slots=True)
class PositionBias:
    """How often the seat decided.

    Example:
        ``PositionBias(num_swaps=20, num_undecided=0, num_first=9, num_second=1, consistency=0.5,
        alarm="the first seat won 9 of 20 swapped comparisons both times, the second 1")``
    """

    num_swaps: int
    num_undecided: int
    num_first: int
    num_second: int
    consistency: float | None  # share of decided swaps that named the same answer; None: no swaps
    alarm: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthBias:
    """How verdicts go with length among answers of equal true quality."""

    num_compared: int
    correlation: float | None
    reason: str | None  # why there is no correlation
    alarm: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {name: getattr(self, name) for name in self.__slots__}


def read_swap(as_given: bool | None, swapped: bool | None) -> Swap:
    """Name what two verdicts on the same two answers, in both orders, amount to.

    Args:
        as_given: whether the first seat won in the one order; None: no verdict, or a tie.
        swapped: whether the first seat won in the other order.
    """
    if as_given is None or swapped is None:
        return Swap.UNDECIDED
    if as_given is not swapped:
        return Swap.CONSISTENT
    return Swap.FIRST if as_given else Swap.SECOND


def position_bias(swaps: Iterable[Swap]) -> PositionBias:
    """Test whether verdicts that flip with the order flip to one side (exact sign test).

    A judge that is merely unsure flips to either side alike: that costs agreement, not this.
    """
    counts = dict.fromkeys(Swap, 0)
    for swap in swaps:
        counts[swap] += 1
    first, second = counts[Swap.FIRST], counts[Swap.SECOND]
    num = first + second + counts[Swap.CONSISTENT]
    flips = first + second
    is_one_sided = flips > 0 and binomtest(first, flips).pvalue < SIGNIFICANCE
    alarm = None
    if is_one_sided and abs(first - second) / num >= MIN_SEAT_SHARE:
        seats = ("first", first, "second", second)
        if second > first:
            seats = ("second", second, "first", first)
        alarm = (
            f"the {seats[0]} seat won {seats[1]} of {num} swapped comparisons both times, "
            f"the {seats[2]} {seats[3]}"
        )
    return PositionBias(
        num_swaps=num,
        num_undecided=counts[Swap.UNDECIDED],
        num_first=first,
        num_second=second,
        consistency=counts[Swap.CONSISTENT] / num if num else None,
        alarm=alarm,
    )


def length_bias(pairs: Sequence[Pair]) -> LengthBias:
    """Correlate scores with length among answers that are equally good.

    Scores and lengths are ranked among the good answers and among the bad ones apart, centred, and
    correlated over both (a stratified Spearman correlation; compare van Elteren 1960). Given r over
    N answers in S groups, ``r * sqrt(N - S)`` is close to standard normal where there is no
    connection (permutation theory: variance of r is 1 / (N - S) within the groups).
    """
    groups = []
    for is_good in (True, False):
        group = [
            (pair.judge, pair.length)
            for pair in pairs
            if pair.length is not None and pair.truth != CUT and (pair.truth > CUT) is is_good
        ]
        if len(group) >= MIN_IN_STRATUM:
            groups.append(np.array([_centred_ranks(column) for column in zip(*group, strict=True)]))
    num = sum(group.shape[1] for group in groups)
    if not groups:
        reason = f"fewer than {MIN_IN_STRATUM} answers of equal quality"
        return LengthBias(num_compared=0, correlation=None, reason=reason, alarm=None)
    judge, length = np.concatenate(groups, axis=1)
    spread = float(np.sqrt((judge**2).sum() * (length**2).sum()))
    if spread == 0.0:
        reason = "answers of equal quality all have the same score, or the same length"
        return LengthBias(num_compared=num, correlation=None, reason=reason, alarm=None)
    correlation = float((judge * length).sum()) / spread
    odds = 2 * float(norm.sf(abs(correlation) * np.sqrt(num - len(groups))))
    alarm = None
    if odds < SIGNIFICANCE and abs(correlation) >= MIN_LENGTH_CORRELATION:
        which = "longer" if correlation > 0 else "shorter"
        alarm = f"of {num} answers of equal quality it prefers the {which} (r {correlation:.2f})"
    return LengthBias(num_compared=num, correlation=correlation, reason=None, alarm=alarm)


def _centred_ranks(values: Sequence[float]) -> Floats:
    ranks: Floats = np.asarray(rankdata(values), dtype=np.float64)
    return ranks - float(ranks.mean())
