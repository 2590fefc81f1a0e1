"""How far two graders agree on the same answers, beyond what chance gives.

Pure arithmetic over pairs of values; it does not know which grader is right, or what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr  # type: ignore[import-untyped]

CUT = 0.5
"""Above it an answer counts as good, below as bad; a grade of exactly this decides nothing."""
NUM_RESAMPLES = 2_000  # the 2.5 % quantile moves by less than 0.01 from seed to seed

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One answer that a judge and a check or a person have graded.

    Example:
        ``Pair(judge=0.75, truth=1.0, length=214)``
    """

    judge: float  # in [0, 1]
    truth: float  # in [0, 1]; what check or person said
    length: int | None = None  # characters of the answer

    @property
    def is_decided(self) -> bool:
        """Whether both call the answer good or bad."""
        return self.judge != CUT and self.truth != CUT


@dataclass(frozen=True, kw_only=True, slots=True)
class Agreement:
    """What the pairs say; a number that they cannot give is None and has its reason.

    Example:
        ``Agreement(num_pairs=60, num_undecided=2, agreement=0.9, kappa=0.8, low=0.71, high=0.88,
        level=0.84, rank_correlation=0.77)``
    """

    num_pairs: int  # that are decided
    num_undecided: int
    agreement: float | None  # share of decided pairs with the same verdict
    kappa: float | None
    low: float | None  # kappa is above it with the confidence ``level``
    high: float | None  # and below this
    level: float
    kappa_reason: str | None = None
    rank_correlation: float | None = None  # Spearman's, of the values themselves
    rank_reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return {name: getattr(self, name) for name in self.__slots__}


def measure(pairs: Sequence[Pair], *, level: float) -> Agreement:
    """Work out Cohen's kappa with a bootstrap interval, and Spearman's rank correlation.

    kappa = (p_o - p_e) / (1 - p_e) with the observed agreement p_o and the agreement p_e that the
    two graders' own shares of "good" give by chance (Cohen 1960). Its interval is the percentile
    bootstrap over pairs (Efron 1979), from the ``1 - level`` to the ``level`` quantile: each end is
    one-sided with that confidence. Differences: pairs are drawn as counts of the four cells, which
    is the same distribution; a resample whose kappa is undefined counts as 0, so that the lower end
    never gains by it. The generator's seed is fixed: the same pairs give the same interval.

    Unbalanced labels lower kappa at the same agreement, rightly: of a judge that agrees on 90 % of
    answers of which 90 % are good, kappa is 0.44, for it hardly ever finds the bad ones.
    """
    decided = [pair for pair in pairs if pair.is_decided]
    judged = np.array([pair.judge > CUT for pair in decided], dtype=bool)
    true = np.array([pair.truth > CUT for pair in decided], dtype=bool)
    cells = _cells(judged, true)
    rank, rank_reason = _rank_correlation(pairs)
    kappa = float(kappas(cells)) if decided else float("nan")
    is_known = bool(np.isfinite(kappa))
    low, high = _interval(tuple(cells.tolist()), level) if is_known else (None, None)
    return Agreement(
        num_pairs=len(decided),
        num_undecided=len(pairs) - len(decided),
        agreement=float((judged == true).mean()) if decided else None,
        kappa=kappa if is_known else None,
        low=low,
        high=high,
        level=level,
        kappa_reason=None if is_known else _undefined(judged, true),
        rank_correlation=rank,
        rank_reason=rank_reason,
    )


def kappas(cells_N4: Floats) -> Floats:
    """Return Cohen's kappa of each two-by-two table.

    Args:
        cells_N4: counts ``[..., 4]``: both good, judge good, truth good, both bad.

    Returns:
        ``[...]``; NaN where one grader's, and the other's, verdicts are all the same one.
    """
    both, judge_only, truth_only, neither = np.moveaxis(cells_N4, -1, 0)
    num = cells_N4.sum(axis=-1)
    observed = (both + neither) / num
    good = (both + judge_only) * (both + truth_only)
    bad = (neither + judge_only) * (neither + truth_only)
    chance = (good + bad) / num**2
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(chance < 1, (observed - chance) / (1 - chance), np.nan))


def _cells(judged: NDArray[np.bool_], true: NDArray[np.bool_]) -> Floats:
    kinds = (judged & true, judged & ~true, ~judged & true, ~judged & ~true)
    return np.array([kind.sum() for kind in kinds], dtype=np.float64)


@lru_cache(maxsize=4_096)
def _interval(cells: tuple[float, ...], level: float) -> tuple[float, float]:
    num = int(sum(cells))
    shares = np.array(cells) / num
    drawn = np.random.default_rng(0).multinomial(num, shares, size=NUM_RESAMPLES)
    found = np.nan_to_num(kappas(drawn.astype(np.float64)), nan=0.0)
    low, high = np.quantile(found, [1 - level, level])
    return float(low), float(high)


def _undefined(judged: NDArray[np.bool_], true: NDArray[np.bool_]) -> str:
    if not judged.size:
        return "no pairs"
    return f"all {judged.size} answers are {'good' if true[0] else 'bad'}, and are judged so"


def _rank_correlation(pairs: Sequence[Pair]) -> tuple[float | None, str | None]:
    judge, truth = [pair.judge for pair in pairs], [pair.truth for pair in pairs]
    if len(pairs) < 3:
        return None, "fewer than 3 pairs"
    if len(set(judge)) == 1 or len(set(truth)) == 1:
        return None, "one of the graders gives all answers the same score"
    return float(spearmanr(judge, truth).statistic), None
