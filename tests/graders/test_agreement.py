import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import cohen_kappa_score

from graders.agreement import Pair, kappas, measure

VALUES = st.sampled_from([0.0, 0.2, 0.5, 0.75, 1.0])
PAIRS = st.lists(st.builds(lambda j, t: Pair(judge=j, truth=t), VALUES, VALUES), max_size=40)


def pairs_of(cells: tuple[int, int, int, int]) -> list[Pair]:
    """Return pairs: both good, judge only, truth only, both bad."""
    kinds = ((1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0))
    return [
        Pair(judge=judge, truth=truth)
        for (judge, truth), num in zip(kinds, cells, strict=True)
        for _ in range(num)
    ]


def test_kappa_by_hand() -> None:
    # p_o = 54/60 = 0.9; both say good in half of the cases: p_e = 0.5; (0.9 - 0.5) / 0.5 = 0.8
    found = measure(pairs_of((27, 3, 3, 27)), level=0.975)
    assert found.kappa == pytest.approx(0.8)
    assert found.agreement == pytest.approx(0.9)
    assert found.low is not None and found.high is not None
    assert found.low < 0.8 < found.high


@given(PAIRS)
@settings(deadline=None)
def test_kappa_equals_scikit_learns(pairs: list[Pair]) -> None:
    decided = [pair for pair in pairs if pair.is_decided]
    judged, true = [p.judge > 0.5 for p in decided], [p.truth > 0.5 for p in decided]
    found = measure(pairs, level=0.9)
    assert found.num_pairs == len(decided)
    if not decided or (len(set(judged)) == len(set(true)) == 1 and judged[0] == true[0]):
        assert found.kappa is None
        assert found.kappa_reason
    else:
        assert found.kappa == pytest.approx(cohen_kappa_score(judged, true), abs=1e-12)


@given(PAIRS)
@settings(deadline=None)
def test_the_interval_holds_kappa_and_is_the_same_each_time(pairs: list[Pair]) -> None:
    found = measure(pairs, level=0.975)
    assert measure(list(reversed(pairs)), level=0.975) == found
    if found.kappa is not None and found.low is not None and found.high is not None:
        assert -1 <= found.low <= found.high <= 1
        assert measure(pairs, level=0.75).low >= found.low  # type: ignore[operator]


def test_the_same_answer_for_everything_has_no_kappa_and_says_so() -> None:
    found = measure(pairs_of((40, 0, 0, 0)), level=0.975)
    assert (found.kappa, found.low, found.high) == (None, None, None)
    assert found.kappa_reason == "all 40 answers are good, and are judged so"
    assert found.rank_correlation is None
    assert measure([], level=0.975).kappa_reason == "no pairs"


def test_a_constant_judge_has_kappa_zero() -> None:
    assert measure(pairs_of((30, 30, 0, 0)), level=0.975).kappa == 0.0


def test_ninety_percent_agreement_on_nearly_constant_labels_is_little_agreement() -> None:
    # 90 of 100 good; 9 of them called bad, 1 of the 10 bad called good.
    found = measure(pairs_of((81, 1, 9, 9)), level=0.975)
    assert found.agreement == pytest.approx(0.9)
    # p_e = 0.82 * 0.9 + 0.18 * 0.1 = 0.756; (0.9 - 0.756) / 0.244 = 0.590
    assert found.kappa == pytest.approx(0.590, abs=1e-3)


def test_an_undecided_grade_is_counted_apart_and_enters_the_rank_correlation() -> None:
    pairs = [Pair(judge=value, truth=value) for value in (0.0, 0.5, 1.0, 0.25)]
    found = measure(pairs, level=0.9)
    assert (found.num_pairs, found.num_undecided) == (3, 1)
    assert found.rank_correlation == pytest.approx(1.0)


def test_the_bootstrap_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    shares, level = np.array([0.45, 0.05, 0.05, 0.45]), 0.95  # kappa 0.8
    true = float(kappas(shares))
    drawn = rng.multinomial(120, shares, size=200)
    below = [measure(pairs_of(tuple(cells)), level=level).low <= true for cells in drawn]
    assert 0.90 <= np.mean(below) <= 1.0
