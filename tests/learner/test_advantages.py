import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.advantages import group_advantages

rewards_lists = st.lists(st.floats(0, 1), min_size=2, max_size=12)


def slow_reference(rewards: list[float], *, normalize_std: bool) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    std = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / len(rewards))
    return [(r - mean) / (std + 1e-6) if normalize_std else r - mean for r in rewards]


def test_rewards_are_centered_on_their_group() -> None:
    # mean of 1, 0, 0, 0.6 is 0.4
    assert group_advantages([1.0, 0.0, 0.0, 0.6]) == pytest.approx([0.6, -0.4, -0.4, 0.2])


def test_normalizing_divides_by_the_population_std() -> None:
    # mean 0.5, std sqrt((0.25 + 0.25) / 2) = 0.5
    advantages = group_advantages([1.0, 0.0], normalize_std=True)
    assert advantages == pytest.approx([0.5 / 0.500001, -0.5 / 0.500001], rel=1e-12)


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    # 1 against (0 + 0 + 0.6) / 3 = 0.2; 0 against (1 + 0 + 0.6) / 3; 0.6 against 1 / 3
    advantages = group_advantages([1.0, 0.0, 0.0, 0.6], baseline="leave_one_out")
    assert advantages == pytest.approx([0.8, -1.6 / 3, -1.6 / 3, 0.6 - 1 / 3])


def test_groups_with_far_means_are_centered_each_on_its_own() -> None:
    advantages = group_advantages([[0.0, 0.2], [0.8, 1.0]])
    assert advantages == pytest.approx(np.array([[-0.1, 0.1], [-0.1, 0.1]]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("normalize_std", [False, True])
def test_equal_rewards_give_zero_advantage(
    dtype: type[np.floating], value: float, normalize_std: bool
) -> None:
    for num_rollouts in range(2, 33):
        rewards = np.full(num_rollouts, value, dtype)
        assert not group_advantages(rewards, normalize_std=normalize_std).any()


@pytest.mark.parametrize("normalize_std", [False, True])
def test_rewards_equal_up_to_rounding_give_zero_advantage(normalize_std: bool) -> None:
    assert 0.1 + 0.2 != 0.3
    rewards = [0.1 + 0.2, 0.3, float(np.float32(0.3)), 0.3]
    assert not group_advantages(rewards, normalize_std=normalize_std).any()
    halves = np.array([0.1 * 3, 0.3], np.float16)
    assert not group_advantages(halves, normalize_std=normalize_std).any()


def test_small_real_differences_are_kept() -> None:
    assert group_advantages([0.5, 0.501]) == pytest.approx([-0.0005, 0.0005])


@given(rewards_lists, st.booleans())
def test_matches_the_slow_reference(rewards: list[float], normalize_std: bool) -> None:
    advantages = group_advantages(rewards, normalize_std=normalize_std)
    if max(rewards) - min(rewards) <= 1e-6:
        assert not advantages.any()
    else:
        reference = slow_reference(rewards, normalize_std=normalize_std)
        assert advantages == pytest.approx(reference, abs=1e-9)
        assert advantages.any()


@given(rewards_lists, st.booleans(), st.randoms(use_true_random=False))
def test_sums_to_zero_and_follows_a_permutation(
    rewards: list[float], normalize_std: bool, random: object
) -> None:
    advantages = group_advantages(rewards, normalize_std=normalize_std)
    assert advantages.sum() == pytest.approx(0.0, abs=1e-9)
    order = list(range(len(rewards)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = group_advantages([rewards[i] for i in order], normalize_std=normalize_std)
    assert shuffled == pytest.approx(advantages[order], abs=1e-9)


@given(rewards_lists, st.floats(-3, 3))
def test_adding_a_constant_to_all_rewards_changes_nothing(
    rewards: list[float], shift: float
) -> None:
    shifted = group_advantages([r + shift for r in rewards])
    assert shifted == pytest.approx(group_advantages(rewards), abs=1.1e-6)


@pytest.mark.parametrize(
    "rewards", [[], [1.0], 0.5, [math.nan, 1.0], [math.inf, 0.0], [None, 1.0], [[1.0], [0.0]]]
)
def test_rewards_that_cannot_be_compared_are_refused(rewards: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        group_advantages(rewards)  # type: ignore[arg-type]
