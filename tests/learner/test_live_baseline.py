import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.live_baseline import (
    advantages,
    baselines,
    nearest_only,
    overall_means,
    unexplained_share,
)


@st.composite
def records(draw: st.DrawFn) -> dict:
    """Return episodes with outcomes, places on a line, skills and sessions; at least two apart."""
    num = draw(st.integers(2, 14))
    outcome = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
    sessions = [draw(st.sampled_from([None, None, "s", "t"])) for _ in range(num)]
    sessions[:2] = [None, "s"]
    places = np.array([draw(st.floats(0, 3)) for _ in range(num)])
    distances = np.abs(places[:, None] - places[None, :])
    for _ in range(draw(st.integers(0, 5))):
        distances[draw(st.integers(0, num - 1)), draw(st.integers(0, num - 1))] = math.inf
    return {
        "outcomes_N": np.array([draw(outcome) for _ in range(num)]),
        "distances_NN": distances,
        "skills_N": [draw(st.integers(0, 2)) for _ in range(num)],
        "sessions_N": sessions,
    }


@given(records())
def test_a_baseline_is_a_number_between_the_others_outcomes(given_: dict) -> None:
    found = baselines(**given_)
    assert np.isfinite(found).all()
    for i, session in enumerate(given_["sessions_N"]):
        others = [
            outcome
            for j, outcome in enumerate(given_["outcomes_N"])
            if j != i and (session is None or given_["sessions_N"][j] != session)
        ]
        assert min(others) - 1e-9 <= found[i] <= max(others) + 1e-9


@given(records(), st.integers(0, 13), st.floats(0, 1))
def test_an_outcome_never_enters_its_own_baseline_nor_its_sessions(
    given_: dict, pick: int, other: float
) -> None:
    i = pick % len(given_["outcomes_N"])
    before = baselines(**given_)
    outcomes = given_["outcomes_N"].copy()
    outcomes[i] = other
    after = baselines(**given_ | {"outcomes_N": outcomes})
    session = given_["sessions_N"][i]
    for j, name in enumerate(given_["sessions_N"]):
        if j == i or (session is not None and name == session):
            assert after[j] == pytest.approx(before[j], abs=1e-12)


@given(records())
def test_without_neighbours_and_with_one_skill_it_is_the_mean_of_the_others(given_: dict) -> None:
    alone = given_ | {
        "skills_N": None,
        "distances_NN": np.full_like(given_["distances_NN"], np.inf),
    }
    plain = overall_means(given_["outcomes_N"], sessions_N=given_["sessions_N"])
    assert baselines(**alone) == pytest.approx(plain, abs=1e-9)


def test_two_groups_that_tell_everything_are_believed_and_noise_is_not() -> None:
    outcomes = np.array([0.0, 1.0] * 8)
    groups = np.where(outcomes[:, None] == outcomes[None, :], 0.1, 5.0)
    told = baselines(outcomes, groups)
    assert np.abs(outcomes - told).max() < 0.05
    # every episode's neighbours are the others of a pair of unequal ones: they tell nothing
    pairs = np.where((np.arange(16) // 2)[:, None] == (np.arange(16) // 2)[None, :], 0.1, math.inf)
    assert baselines(outcomes, pairs) == pytest.approx(overall_means(outcomes), abs=1e-12)


def test_a_hand_worked_shrinkage() -> None:
    """Two skills of two, no neighbours: outcomes 1, 1 and 0, 0.

    For the first episode the others are 1 | 0, 0: p = 1/3 and m = 1 from n = 1. Without it, of the
    others: j=1 has p = 0, and no skill mean; j=2 and j=3 have p = 1/2, m = 0, n = 1. So the sums
    are (r - p)(m - p) = 2 * (-1/2)(-1/2) = 1/2 and (r - p)^2 = 1/2 (j=1 has no mean and does not
    count): t = v, Z = 1, and the baseline is the skill's mean, 1.
    """
    outcomes, far = np.array([1.0, 1.0, 0.0, 0.0]), np.full((4, 4), math.inf)
    assert baselines(outcomes, far, skills_N=[1, 1, 2, 2]) == pytest.approx([1, 1, 0, 0])
    # With an outcome of 1/2 in the second skill: of the others of the first episode, j=2 has
    # p = (1 + 1/2) / 2 = 3/4, m = 1/2, r = 0 and j=3 has p = 1/2, m = 0, r = 1/2:
    # t = (-3/4)(-1/4) + 0 = 3/16, v = 9/16, Z = t / (t + v - t) = 1/3, p = 1/2, m = 1.
    outcomes = np.array([1.0, 1.0, 0.0, 0.5])
    assert baselines(outcomes, far, skills_N=[1, 1, 2, 2])[0] == pytest.approx(1 / 2 + 1 / 3 / 2)


def test_a_neighbour_hundreds_of_bandwidths_away_is_none() -> None:
    # without its twin, the first episode's only neighbour lies 350 bandwidths away: e^-350 squared
    # is no number, and its outcome would be all that was left
    places = np.array([0.0, 2e-6, 7e-4, 1.0])
    distances = np.abs(places[:, None] - places[None, :])
    found = baselines(np.array([1.0, 1.0, 0.0, 0.0]), distances)
    assert np.isfinite(found).all()


def _known(num: int, seed: int, *, is_told: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return outcomes and distances of four kinds of task, of which one succeeds at 0.1 .. 0.9."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(4, size=num)
    chances = np.array([0.1, 0.3, 0.7, 0.9])[kinds] if is_told else np.full(num, 0.5)
    vectors = rng.normal(size=(4, 16))[kinds] + 0.3 * rng.normal(size=(num, 16))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    outcomes = (rng.random(num) < chances).astype(np.float64)
    return outcomes, nearest_only(np.clip(1.0 - vectors @ vectors.T, 0.0, 2.0), 16)


@pytest.mark.parametrize(
    ("is_told", "lowest", "highest"), [(True, 0.55, 0.80), (False, 0.97, 1.03)]
)
def test_the_variance_falls_where_tasks_tell_and_stays_where_they_do_not(
    is_told: bool, lowest: float, highest: float
) -> None:
    # Knowing the chances leaves 0.13 / 0.25 of the variance in the first case, all in the second;
    # four kinds drawn anew for each seed move the first to about 0.6.
    shares = []
    for seed in range(20):
        outcomes, distances = _known(64, seed, is_told=is_told)
        shares.append(
            unexplained_share(outcomes, baselines(outcomes, distances), overall_means(outcomes))
        )
    assert lowest < np.mean(shares) < highest


def test_equal_outcomes_of_a_skill_are_exactly_no_signal() -> None:
    outcomes, skills = np.array([1.0, 1.0, 0.0, 1.0]), [1, 1, 2, 2]
    found = advantages(outcomes, overall_means(outcomes), skills_N=skills)
    assert found[:2].tolist() == [0.0, 0.0]
    assert found[2:] == pytest.approx([-1.0, 1 / 3])
    assert not advantages([0.1 + 0.2, 0.3], [0.5, 0.5]).any()


def test_nothing_to_explain_has_no_share() -> None:
    ones = np.ones(3)
    assert unexplained_share(ones, ones, ones) is None


@pytest.mark.parametrize(
    ("outcomes", "distances", "sessions"),
    [
        ([1.0], [[0.0]], None),
        ([1.0, 0.0], np.ones((2, 2)), ["s", "s"]),
        ([1.0, math.nan], np.ones((2, 2)), None),
        ([1.0, 0.0], -np.ones((2, 2)), None),
        ([1.0, 0.0], np.full((2, 2), math.nan), None),
        ([1.0, 0.0], np.ones((2, 3)), None),
    ],
)
def test_what_cannot_be_compared_is_refused(outcomes, distances, sessions) -> None:
    with pytest.raises(ValueError):
        baselines(outcomes, distances, sessions_N=sessions)


def test_the_nearest_stay_and_the_rest_are_out_of_reach() -> None:
    kept = nearest_only(np.array([[0.0, 1.0, 2.0], [3.0, 0.0, 1.0], [1.0, 1.0, 0.0]]), 1)
    # a place's distance to itself is no neighbour's; of two equally near the first stays
    assert kept.tolist() == [
        [math.inf, 1.0, math.inf],
        [math.inf, math.inf, 1.0],
        [1.0, math.inf, math.inf],
    ]
