"""From rewards to advantages.

Knows nothing of tokens, tasks or why a rollout has no reward: the caller leaves unscored rollouts
out (a missing reward is neither 0 nor the group's mean).

Axes: ``G`` rollouts of one group.
"""

from typing import Literal

import numpy as np
import numpy.typing as npt

Baseline = Literal["mean", "leave_one_out"]

MIN_SPREAD = 1e-6
"""Rewards of a group that lie closer together than this are equal: graders do not tell them apart,
and dividing by such a standard deviation would blow rounding up to advantages of ±1."""

STD_EPSILON = 1e-6
"""Added to the standard deviation, as GRPO's implementations do; far below any real spread of
rewards."""


def group_advantages(
    rewards_G: npt.ArrayLike, *, baseline: Baseline = "mean", normalize_std: bool = False
) -> npt.NDArray[np.float64]:
    """Center each group's rewards on its mean: ``A_g = r_g - mean(r)``.

    That is Dr. GRPO (arXiv:2503.20783), which shows that dividing by the group's standard
    deviation favours tasks that are nearly always or nearly never solved. With ``leave_one_out``
    a rollout's baseline is the mean of the others (RLOO, arXiv:2402.14740), which does not depend
    on its own reward: the same times ``G / (G - 1)``. With ``normalize_std`` the result is divided
    by ``std(r) + 1e-6`` (GRPO, arXiv:2402.03300; the population's std).

    Unlike both, a group whose rewards are equal up to rounding (in the precision they arrive in)
    has advantages of exactly zero, so that "no signal" is a fact that can be tested and not a
    matter of the 17th digit.

    Args:
        rewards_G: [..., G], rewards of one group along the last axis; every rollout scored.
        baseline: what a reward is compared with.
        normalize_std: divide by the group's standard deviation.

    Returns:
        float64 [..., G]; each group sums to 0 up to rounding.

    Raises:
        ValueError: G < 2, or a reward is not finite.
    """
    rewards = np.asarray(rewards_G)
    precision = np.finfo(rewards.dtype).eps if np.issubdtype(rewards.dtype, np.floating) else 0.0
    rewards = rewards.astype(np.float64)
    if rewards.ndim == 0 or rewards.shape[-1] < 2:
        raise ValueError(f"a group needs at least 2 rewards to compare, got shape {rewards.shape}")
    if not np.isfinite(rewards).all():
        raise ValueError(f"rewards must be finite, got {rewards.tolist()}")
    # Four units in the last place: what a mean or a weighted sum of a few grades may be off by.
    tolerance = np.maximum(MIN_SPREAD, 4 * precision * np.abs(rewards).max(axis=-1, keepdims=True))
    spread = rewards.max(axis=-1, keepdims=True) - rewards.min(axis=-1, keepdims=True)
    centered = rewards - rewards.mean(axis=-1, keepdims=True)
    if baseline == "leave_one_out":
        centered = centered * (rewards.shape[-1] / (rewards.shape[-1] - 1))
    if normalize_std:
        centered = centered / (rewards.std(axis=-1, keepdims=True) + STD_EPSILON)
    return np.where(spread <= tolerance, 0.0, centered)
