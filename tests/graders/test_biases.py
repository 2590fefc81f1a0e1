import numpy as np
import pytest

from graders.agreement import Pair
from graders.biases import Swap, length_bias, position_bias, read_swap


@pytest.mark.parametrize(
    ("as_given", "swapped", "expected"),
    [
        (True, False, Swap.CONSISTENT),
        (False, True, Swap.CONSISTENT),
        (True, True, Swap.FIRST),
        (False, False, Swap.SECOND),
        (None, True, Swap.UNDECIDED),
        (True, None, Swap.UNDECIDED),
    ],
)
def test_two_verdicts_in_both_orders(as_given, swapped, expected) -> None:
    assert read_swap(as_given, swapped) is expected


def test_the_first_seat_that_always_wins_raises_an_alarm() -> None:
    found = position_bias([Swap.FIRST] * 10)
    assert found.alarm == "the first seat won 10 of 10 swapped comparisons both times, the second 0"
    assert found.consistency == 0.0


def test_the_second_seat_is_found_too() -> None:
    found = position_bias([Swap.SECOND] * 9 + [Swap.CONSISTENT] * 11)
    assert found.alarm is not None and found.alarm.startswith("the second seat won 9 of 20")


def test_flips_to_both_sides_are_doubt_and_no_bias() -> None:
    found = position_bias([Swap.FIRST] * 10 + [Swap.SECOND] * 9 + [Swap.CONSISTENT] * 20)
    assert found.alarm is None
    assert found.consistency == pytest.approx(20 / 39)


def test_a_small_surplus_among_very_many_is_no_alarm() -> None:
    # 60 of 1,000 against 20: no accident, but 4 % of the verdicts.
    swaps = [Swap.FIRST] * 60 + [Swap.SECOND] * 20 + [Swap.CONSISTENT] * 920
    assert position_bias(swaps).alarm is None


def test_what_was_not_decided_counts_apart() -> None:
    found = position_bias([Swap.UNDECIDED] * 5)
    assert (found.num_swaps, found.num_undecided, found.consistency) == (0, 5, None)


def of_length(judge: float, truth: float, length: int) -> Pair:
    return Pair(judge=judge, truth=truth, length=length)


def test_always_the_longer_raises_the_alarm_of_length() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 1_000, size=40)
    pairs = [of_length(float(n > 500), float(k % 2), int(n)) for k, n in enumerate(lengths)]
    found = length_bias(pairs)
    assert found.correlation is not None and found.correlation > 0.8
    assert found.alarm is not None and "prefers the longer" in found.alarm


def test_good_answers_that_are_longer_raise_no_alarm_where_the_judge_sees_quality() -> None:
    # Length tells quality here, and among equally good answers the judge's few errors do not.
    rng = np.random.default_rng(0)
    pairs = []
    for k in range(60):
        good = bool(k % 2)
        right = k % 10 != 3
        length = int(rng.integers(500, 900) if good else rng.integers(10, 400))
        pairs.append(of_length(float(good is right), float(good), length))
    assert length_bias(pairs).alarm is None


def test_preferring_the_shorter_is_found_too() -> None:
    pairs = [of_length(float(n < 20), 1.0, n) for n in range(40)]
    found = length_bias(pairs)
    assert found.alarm is not None and "prefers the shorter" in found.alarm


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ([], "fewer than 5"),
        ([of_length(1.0, 1.0, n) for n in range(4)], "fewer than 5"),
        ([of_length(1.0, 1.0, n) for n in range(9)], "same score"),
        ([Pair(judge=1.0, truth=1.0)] * 9, "fewer than 5"),
    ],
)
def test_what_cannot_be_correlated_has_a_reason(pairs: list[Pair], reason: str) -> None:
    found = length_bias(pairs)
    assert found.correlation is None
    assert found.reason is not None and reason in found.reason
