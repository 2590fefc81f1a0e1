"""Budgets by the hour, and rests after failures, on a clock of the test's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graders.allowance import HOUR_S, Allowance, Breaker


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_calls_past_the_allowance_wait_until_the_oldest_is_an_hour_old() -> None:
    clock = Clock()
    allowance = Allowance(max_calls=2, clock=clock)
    allowance.spend_call()
    clock.now += 600
    assert allowance.seconds_left() == 0
    allowance.spend_call()
    assert allowance.seconds_left() == HOUR_S - 600
    clock.now += HOUR_S - 600
    assert allowance.seconds_left() == 0


def test_tokens_past_the_allowance_wait_until_enough_are_an_hour_old() -> None:
    clock = Clock()
    allowance = Allowance(max_tokens=100, clock=clock)
    for number in (10, 60, 60):
        allowance.spend_tokens(number)
        clock.now += 60
    # 130 of 100: the first ten leave 120, the next sixty leave 60.
    assert allowance.seconds_left() == HOUR_S - 120
    clock.now += HOUR_S - 120
    assert allowance.seconds_left() == 0


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 50)), max_size=30))
def test_after_the_wait_less_than_the_allowance_was_spent_in_an_hour(
    spent: list[tuple[int, int]],
) -> None:
    clock, log = Clock(), []
    allowance = Allowance(max_tokens=100, clock=clock)
    for pause_s, number in spent:
        clock.now += pause_s
        allowance.spend_tokens(number)
        log.append((clock.now, number))
    clock.now += allowance.seconds_left()
    left = sum(number for at, number in log if at > clock.now - HOUR_S)
    assert left < 100
    assert allowance.seconds_left() == 0


def test_failures_in_a_row_bring_a_rest_and_others_do_not() -> None:
    clock = Clock()
    breaker = Breaker(max_failures=3, first_rest_s=30, clock=clock)
    for fails in (True, True, False, True, True):
        (breaker.failed if fails else breaker.succeeded)()
    assert breaker.seconds_left() == 0
    breaker.failed()
    assert breaker.seconds_left() == 30


def test_rests_grow_until_one_helps() -> None:
    clock = Clock()
    breaker = Breaker(max_failures=1, first_rest_s=30, max_rest_s=100, clock=clock)
    rests = []
    for _ in range(4):
        breaker.failed()
        rests.append(breaker.seconds_left())
        clock.now += breaker.seconds_left()
    assert rests == [30, 60, 100, 100]
    breaker.succeeded()
    breaker.failed()
    assert breaker.seconds_left() == 30


def test_failures_during_a_rest_do_not_prolong_it() -> None:
    clock = Clock()
    breaker = Breaker(max_failures=2, first_rest_s=30, clock=clock)
    for _ in range(6):
        breaker.failed()
    assert breaker.seconds_left() == pytest.approx(30)
