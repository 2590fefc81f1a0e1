import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.gate import (
    GateConfig,
    GateReport,
    Verdict,
    bootstrap_interval,
    compare,
    sign_flip_chances,
)

CONFIG = GateConfig()
Scores = list[float | None]


def report(
    before: Scores,
    after: Scores,
    skills: list[int | None] | None = None,
    config: GateConfig = CONFIG,
) -> GateReport:
    names = [f"task_{i:03d}" for i in range(len(before))]
    return compare(
        dict(zip(names, before, strict=True)),
        dict(zip(names, after, strict=True)),
        dict(zip(names, skills if skills is not None else [1] * len(before), strict=True)),
        config=config,
    )


def test_clear_gain_is_promoted_with_its_numbers() -> None:
    found = report([0.0] * 12, [1.0] * 9 + [0.0] * 3)
    assert found.verdict is Verdict.PROMOTE
    assert found.overall.mean_before == 0.0
    assert found.overall.mean_after == found.overall.mean_gain == 0.75
    assert found.overall.gain_low is not None
    assert found.overall.gain_high is not None
    assert 0.0 < found.overall.gain_low < 0.75 < found.overall.gain_high <= 1.0
    assert "0.000 -> 0.750" in found.reasons[0]


def test_clear_loss_is_rejected() -> None:
    found = report([1.0] * 9 + [0.0] * 3, [0.0] * 12)
    assert found.verdict is Verdict.REJECT
    assert found.reasons[0].startswith("overall: lost 0.750 -> 0.000")


def test_no_change_is_inconclusive() -> None:
    scores: Scores = [0.0, 1.0, 0.5, 0.25] * 5
    found = report(scores, scores)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert (found.overall.gain_low, found.overall.gain_high) == (0.0, 0.0)
    assert (found.overall.chance_of_gain, found.overall.chance_of_loss) == (1.0, 1.0)


def test_rounding_is_no_gain() -> None:
    assert 0.1 + 0.2 > 0.3
    found = report([0.3] * 20, [0.1 + 0.2] * 20)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.overall.mean_gain == 0.0


def test_too_few_tasks_are_inconclusive_and_say_what_is_missing() -> None:
    found = report([0.0] * 7 + [None], [1.0] * 7 + [1.0])
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "7 of 8" in found.reasons[0]
    assert "1 more" in found.reasons[0]


def test_smallest_allowed_number_of_tasks_can_be_promoted() -> None:
    # all eight gain: by chance in 1 of 2^8 = 256 cases
    found = report([0.0] * 8, [1.0] * 8)
    assert found.verdict is Verdict.PROMOTE
    assert found.overall.chance_of_gain == pytest.approx(1 / 256, abs=0.004)


def test_unscored_tasks_leave_both_sides_and_are_counted() -> None:
    before: Scores = [0.0] * 10 + [None, 1.0, None]
    after: Scores = [1.0] * 10 + [1.0, None, None]
    found = report(before, after)
    plain = report(before[:10], after[:10])
    assert found.overall.num_dropped == 3
    assert found.overall.mean_before == plain.overall.mean_before
    assert found.overall.mean_gain == plain.overall.mean_gain
    assert found.overall.gain_low == plain.overall.gain_low


def test_nothing_scored_has_no_numbers() -> None:
    found = report([None] * 3, [0.5] * 3)
    assert found.overall.num_tasks == 0
    assert found.overall.mean_gain is None
    assert found.verdict is Verdict.INCONCLUSIVE
    assert report([], []).verdict is Verdict.INCONCLUSIVE


def test_new_task_won_and_old_one_lost_is_rejected_by_skill() -> None:
    before: Scores = [0.0] * 20 + [1.0] * 10
    after: Scores = [1.0] * 20 + [0.0] * 10
    found = report(before, after, [1] * 20 + [2] * 10)
    assert found.overall.mean_gain == pytest.approx(1 / 3)
    assert found.verdict is Verdict.REJECT
    assert found.reasons == (found.reasons[0],)
    assert found.reasons[0].startswith("skill 2: lost 1.000 -> 0.000 (-1.000")
    assert found.skills[1].mean_gain == 1.0


def test_fall_of_a_skill_that_is_not_significant_blocks_a_promotion() -> None:
    # one of four tasks of skill 2 lost: -0.25, far from significant
    before: Scores = [0.0] * 20 + [1.0] * 4
    after: Scores = [1.0] * 20 + [1.0, 1.0, 1.0, 0.0]
    found = report(before, after, [1] * 20 + [2] * 4)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons[0].startswith("skill 2: fell 1.000 -> 0.750")
    tolerant = GateConfig(max_skill_loss=0.25)
    assert report(before, after, [1] * 20 + [2] * 4, tolerant).verdict is Verdict.PROMOTE


def test_fall_of_a_skill_with_hardly_any_tasks_blocks_nothing() -> None:
    before: Scores = [0.0] * 20 + [1.0] * 3
    after: Scores = [1.0] * 20 + [1.0, 1.0, 0.0]
    assert report(before, after, [1] * 20 + [2] * 3).verdict is Verdict.PROMOTE


def test_min_gain_moves_the_bar() -> None:
    before: Scores = [0.0] * 40
    after: Scores = [1.0] * 12 + [0.0] * 28
    assert report(before, after).verdict is Verdict.PROMOTE
    assert report(before, after, config=GateConfig(min_gain=0.3)).verdict is Verdict.INCONCLUSIVE


def test_four_lucky_tasks_of_thirty_are_not_proof() -> None:
    """The percentile interval alone would promote: 98 % of resamples hold one of the four."""
    found = report([0.0] * 30, [1.0] * 4 + [0.0] * 26)
    assert found.overall.gain_low is not None
    assert found.overall.gain_low > 0.0
    assert found.overall.chance_of_gain == pytest.approx(1 / 16, abs=0.02)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert f"chance alone gains as much in {found.overall.chance_of_gain:.1%}" in found.reasons[0]


def test_interval_is_that_of_the_textbook() -> None:
    """For many tasks the percentile interval nears mean ± 1.96 standard errors."""
    gains = np.random.default_rng(1).normal(0.1, 0.3, 400)
    low, high = bootstrap_interval(gains, confidence=0.95, num_bootstrap=4000, seed=0)
    half = 1.96 * gains.std() / math.sqrt(400)
    assert (low, high) == pytest.approx((gains.mean() - half, gains.mean() + half), abs=0.003)


def test_sign_flip_chances_match_all_sign_patterns() -> None:
    gains = np.array([0.5, 0.25, -0.25, 1.0, 0.0, 0.5])
    patterns = np.array([[1 if k >> i & 1 else -1 for i in range(6)] for k in range(64)])
    sums = patterns @ gains
    of_gain, of_loss = sign_flip_chances(gains, num_bootstrap=20_000, seed=0)
    assert of_gain == pytest.approx((sums >= gains.sum() - 1e-9).mean(), abs=0.01)
    assert of_loss == pytest.approx((sums <= gains.sum() + 1e-9).mean(), abs=0.01)


@pytest.mark.parametrize("change_share", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("num_tasks", [8, 24, 48])
def test_candidate_that_changes_nothing_real_is_rarely_promoted(
    num_tasks: int, change_share: float
) -> None:
    """Scores flip at random with no tendency: at most (1 - confidence) / 2 = 2.5 % may pass."""
    rng = np.random.default_rng(7)
    config = GateConfig(num_bootstrap=500)
    num_trials, promoted = 400, 0
    for _ in range(num_trials):
        before = rng.integers(0, 2, num_tasks).astype(float)
        redrawn = rng.random(num_tasks) < change_share
        after = np.where(redrawn, rng.integers(0, 2, num_tasks), before)
        found = report(list(before), list(after), config=config)
        promoted += found.verdict is Verdict.PROMOTE
    # 2.5 % of 400 is 10; three standard deviations more are 19
    assert promoted <= 19


def test_real_gain_is_mostly_found() -> None:
    """From 20 % to 60 % on 48 tasks: the gate must not be safe by never promoting."""
    rng = np.random.default_rng(3)
    config = GateConfig(num_bootstrap=500)
    promoted = 0
    for _ in range(100):
        before = (rng.random(48) < 0.2).astype(float)
        after = (rng.random(48) < 0.6).astype(float)
        promoted += report(list(before), list(after), config=config).verdict is Verdict.PROMOTE
    assert promoted >= 90


scores = st.none() | st.sampled_from([0.0, 0.25, 0.5, 1.0])


@given(st.lists(st.tuples(scores, scores, st.none() | st.integers(0, 3)), max_size=30))
@settings(max_examples=50)
def test_exchanging_before_and_after_mirrors_the_numbers(
    tasks: list[tuple[float | None, float | None, int | None]],
) -> None:
    before, after = [t[0] for t in tasks], [t[1] for t in tasks]
    skills = [t[2] for t in tasks]
    config = GateConfig(num_bootstrap=200)
    forth, back = report(before, after, skills, config), report(after, before, skills, config)
    assert forth == report(before, after, skills, config)
    assert not (forth.verdict is Verdict.PROMOTE and back.verdict is Verdict.PROMOTE)
    if forth.overall.mean_gain is not None and back.overall.mean_gain is not None:
        assert forth.overall.mean_gain == -back.overall.mean_gain
    assert sum(c.num_tasks + c.num_dropped for c in forth.skills.values()) == len(tasks)
    text = json.dumps(forth.to_json(), allow_nan=False)
    assert json.loads(text)["verdict"] == forth.verdict


def test_different_tasks_on_the_two_sides_are_refused() -> None:
    with pytest.raises(ValueError, match=r"differ in \['b', 'c'\]"):
        compare({"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0}, {"a": 1, "b": 1}, config=CONFIG)


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
def test_score_outside_its_range_is_refused(score: float) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        report([0.5] * 9, [0.5] * 8 + [score])


def test_tasks_of_other_skills_guard_and_do_not_dilute() -> None:
    learned = [f"a{n}" for n in range(12)]
    others = [f"b{n}" for n in range(60)]
    before = dict.fromkeys(learned, 0.2) | dict.fromkeys(others, 0.5)
    after = dict.fromkeys(learned, 0.8) | dict.fromkeys(others, 0.5)
    skills = dict.fromkeys(learned, 1) | dict.fromkeys(others, 2)
    guards = frozenset(others)
    found = compare(before, after, skills, config=CONFIG, guards=guards)
    assert found.verdict is Verdict.PROMOTE
    assert found.overall.num_tasks == 12
    fallen = compare(
        before, after | dict.fromkeys(others, 0.3), skills, config=CONFIG, guards=guards
    )
    assert fallen.verdict is Verdict.REJECT
    assert "skill 2" in fallen.reasons[0]


def test_a_candidate_whose_failures_cannot_be_scored_is_not_promoted() -> None:
    tasks = [f"t{n}" for n in range(24)]
    before: dict[str, float | None] = dict.fromkeys(tasks, 0.3)
    after: dict[str, float | None] = dict.fromkeys(tasks, 0.9)
    after |= dict.fromkeys(tasks[:6], None)
    found = compare(before, after, dict.fromkeys(tasks, 1), config=CONFIG)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "6 answers of the candidate could not be scored" in found.reasons[0]
