import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.gate import GateConfig, Verdict, compare
from learner.live_proof import NOT_REPLAYABLE, LiveComparison, compare_changes, is_proven, judge

CONFIG = GateConfig(num_bootstrap=500)
ADVANTAGES = np.array([0.5, -0.5] * 6)


def live(scale: float, *, num: int = 12, shift: float = 0.0) -> LiveComparison:
    """Return what a candidate shows that moved each answer by its advantage, times a scale."""
    advantages = ADVANTAGES[:num]
    return compare_changes(advantages * scale + shift, advantages, num_dropped=1, config=CONFIG)


def guards(before: float = 0.5, after: float = 0.5, num: int = 8):
    names = [f"t{n}" for n in range(num)]
    scores = [dict.fromkeys(names, value) for value in (before, after)]
    return compare(*scores, dict.fromkeys(names, 2), config=CONFIG)


def test_a_hand_worked_gain() -> None:
    # changes 0.2, 0.0; their mean 0.1; advantages 1, -1: gains 1 * 0.1 and -1 * -0.1
    found = compare_changes([0.2, 0.0], [1.0, -1.0], num_dropped=3, config=CONFIG)
    assert found.mean_change == pytest.approx(0.1)
    assert found.mean_gain == pytest.approx(0.1)
    assert (found.num_episodes, found.num_dropped) == (2, 3)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=9), st.floats(-5, 5))
def test_what_all_answers_gain_alike_counts_for_nothing(advantages, shift) -> None:
    changes = np.arange(len(advantages)) / 10
    found = [
        compare_changes(changes + by, advantages, num_dropped=0, config=CONFIG).mean_gain
        for by in (0.0, shift)
    ]
    assert found[0] == pytest.approx(found[1], abs=1e-9)


def test_better_answers_likelier_than_worse_ones_are_proposed_and_never_more() -> None:
    report = judge(guards(), live(0.1), CONFIG)
    assert report.verdict is Verdict.PROMOTE
    assert report.reasons[0] == NOT_REPLAYABLE
    assert "+0.0250 nats a token" in report.reasons[1]  # 0.5 * 0.5 * 0.1
    assert "8 held-out tasks of other skills lost nothing" in report.reasons[2]
    assert is_proven(live(0.1), CONFIG)


def test_worse_answers_likelier_than_better_ones_are_rejected() -> None:
    assert judge(guards(), live(-0.1), CONFIG).verdict is Verdict.REJECT


def test_a_candidate_that_moves_all_alike_proves_nothing() -> None:
    report = judge(guards(), live(0.0, shift=0.3), CONFIG)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "do not tell" in report.reasons[0]


def test_with_too_few_episodes_a_person_is_told_so() -> None:
    report = judge(guards(), live(0.1, num=4), CONFIG)
    assert report.verdict is Verdict.PROMOTE
    assert "4 held-out episodes, 8 would be needed to tell" in report.reasons[1]
    assert not is_proven(live(0.1, num=4), CONFIG)
    none = compare_changes([], [], num_dropped=2, config=CONFIG)
    assert "0 of 8 held-out episodes" in judge(guards(num=0), none, CONFIG).reasons[1]
    assert "no other skill has held-out tasks" in judge(guards(num=0), none, CONFIG).reasons[2]


def test_another_skill_that_loses_stops_it() -> None:
    lost = guards(0.9, 0.2)
    assert judge(lost, live(0.1), CONFIG).verdict is Verdict.REJECT
    fell = guards(0.9, 0.8, num=4)  # too few to be sure of, too far to be ignored
    report = judge(fell, live(0.1), CONFIG)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.reasons[0].startswith("skill 2: fell by 0.100, more than 0.05")
