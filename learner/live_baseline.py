"""What was to be expected of a recorded episode, told by the outcomes of others like it.

Work that cannot be replayed gives one rollout a task, so nothing of its own group says how good an
outcome is. The episodes around it do. Pure arithmetic; it does not know where episodes, outcomes
and distances come from.

Axes: ``N`` episodes, also as ``J`` and ``I``: an entry ``[j, i]`` is what would be said of episode
j if nobody knew episode i, nor the others of i's session.
"""

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from learner.advantages import MIN_SPREAD

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MIN_DISTANCE = 1e-6
"""Vectors that lie closer together are of the same text: float32 tells no more."""

MIN_WEIGHT = 1e-9
"""A neighbour that weighs less than this, beside one of about 1, is none."""


def baselines(
    outcomes_N: npt.ArrayLike,
    distances_NN: npt.ArrayLike,
    *,
    skills_N: Sequence[Hashable] | None = None,
    sessions_N: Sequence[Hashable | None] | None = None,
) -> Floats:
    """Return the outcome to be expected of each episode: that of its neighbours, shrunk.

    ``b_i = p_i + Z_i (m_i - p_i)``, twice. First ``m`` is the mean of the skill and ``p`` the mean
    of all; then ``m`` is the neighbours' mean, weighted by ``w_ij = exp(-d_ij / h_i)``
    (Nadaraya-Watson; with ``d = 1 - cosine`` a Gaussian kernel of the vectors' distance), and ``p``
    is what the first gave. Every mean leaves out the episode itself and its session, so a baseline
    never depends on its own episode's outcome and the policy gradient stays unbiased (Williams
    1992; Greensmith, Bartlett and Baxter, 2004).

    ``h_i`` is the distance of the ``ceil(sqrt(n))``-th nearest of i's ``n`` neighbours: it depends
    on distances alone and is wide where neighbours are far (nearest-neighbour bandwidth;
    Loftsgaarden and Quesenberry, 1965).

    ``Z = n t / (n t + v - t)`` is the empirical-Bayes weight of a mean of ``n`` outcomes
    (Buehlmann, 1967, there as ``n / (n + K)``; James-Stein's for normal means: Efron and Morris,
    1973), where ``n = (sum w)^2 / sum w^2`` is the effective number of neighbours (Kish, 1965),
    ``v`` the mean square of ``r - p`` and ``t`` the part of it that the means explain, estimated as
    the mean of ``(r - p)(m - p)``, never below 0. Both are estimated anew for each episode without
    it, unlike the textbook's, which see all. Where the neighbours tell nothing ``t`` is about 0,
    and the baseline is the skill's mean.

    Args:
        outcomes_N: in [0, 1].
        distances_NN: [i, j] how far j is from i, at least 0; infinite where j may not inform i or
            nobody knows. The diagonal, other skills and the own session count as infinite.
        skills_N: of each episode; None: all are of one.
        sessions_N: of each episode; None, for all or for one: it shares its session with none.

    Returns:
        float64 [N], each between the smallest and the largest of the other outcomes.

    Raises:
        ValueError: an outcome is not finite, a distance is negative or NaN, shapes differ, or an
            episode has no other to be compared with.
    """
    outcomes = np.asarray(outcomes_N, dtype=np.float64)
    distances = np.asarray(distances_NN, dtype=np.float64)
    num = len(outcomes)
    if distances.shape != (num, num) or not np.isfinite(outcomes).all():
        raise ValueError(f"{num} finite outcomes need {num} x {num} distances")
    if num and not (distances >= 0).all():
        raise ValueError("distances must be at least 0")
    others_JI = _others(num, sessions_N)
    if not others_JI.any(axis=0).all():
        raise ValueError("an episode has no other to be compared with")
    skills = _codes(skills_N if skills_N is not None else [0] * num)
    together_JI = (skills[:, None] == skills[None, :]) & others_JI
    kernel_JN = _kernel(np.where(together_JI, distances, np.inf))
    overall_JI, _ = _means(others_JI.astype(np.float64), outcomes, others_JI)
    expected_JI = overall_JI
    for weights_JN in (together_JI.astype(np.float64), kernel_JN):
        means_JI, sizes_JI = _means(weights_JN, outcomes, others_JI)
        expected_JI = _shrunk(means_JI, sizes_JI, expected_JI, outcomes, others_JI)
    return np.diagonal(expected_JI).copy()


def overall_means(
    outcomes_N: npt.ArrayLike, *, sessions_N: Sequence[Hashable | None] | None = None
) -> Floats:
    """Return, for each episode, the mean outcome of all others outside its session: [N].

    The plain baseline, which knows nothing of what a task is like.

    Raises:
        ValueError: an episode has no other to be compared with.
    """
    outcomes = np.asarray(outcomes_N, dtype=np.float64)
    others_NN = _others(len(outcomes), sessions_N)
    if not others_NN.any(axis=0).all():
        raise ValueError("an episode has no other to be compared with")
    return np.asarray(outcomes @ others_NN / others_NN.sum(axis=0))


def nearest_only(distances_NN: npt.ArrayLike, limit: int) -> Floats:
    """Return the distances; all but each row's ``limit`` smallest, and the diagonal, infinite."""
    distances = np.array(distances_NN, dtype=np.float64)
    np.fill_diagonal(distances, np.inf)
    beyond_NK = np.argsort(distances, axis=1, kind="stable")[:, limit:]
    np.put_along_axis(distances, beyond_NK, np.inf, axis=1)
    return distances


def advantages(
    outcomes_N: npt.ArrayLike,
    baselines_N: npt.ArrayLike,
    *,
    skills_N: Sequence[Hashable] | None = None,
) -> Floats:
    """Return ``outcome - baseline``: [N]; exactly 0 in a skill whose outcomes are all equal.

    Such a skill shows no better and no worse answers, whatever other skills' outcomes are.
    """
    outcomes, expected = (np.asarray(one, dtype=np.float64) for one in (outcomes_N, baselines_N))
    found = outcomes - expected
    skills = _codes(skills_N if skills_N is not None else [0] * len(outcomes))
    for skill in set(skills.tolist()):
        if np.ptp(outcomes[skills == skill]) <= MIN_SPREAD:
            found[skills == skill] = 0.0
    return found


def unexplained_share(
    outcomes_N: npt.ArrayLike, baselines_N: npt.ArrayLike, plain_N: npt.ArrayLike
) -> float | None:
    """Return what is left of the outcomes' variance when a baseline is subtracted.

    ``sum (r - b)^2 / sum (r - g)^2``, that is 1 - R^2 of the prediction by leave-one-out, and about
    by how much the variance of the gradient changes. Above 1 the baseline is worse than the plain
    one.

    Args:
        outcomes_N: what came out.
        baselines_N: what was expected; each without its own episode.
        plain_N: ``overall_means`` of the same outcomes.

    Returns:
        None where the plain baseline leaves nothing to explain.
    """
    outcomes = np.asarray(outcomes_N, dtype=np.float64)
    left, whole = (
        float(np.square(outcomes - np.asarray(one, dtype=np.float64)).sum())
        for one in (baselines_N, plain_N)
    )
    return left / whole if whole > MIN_SPREAD**2 else None


def _others(num: int, sessions_N: Sequence[Hashable | None] | None) -> Flags:
    """Return [j, i]: whether j is another episode than i, of another session."""
    sessions = sessions_N if sessions_N is not None else [None] * num
    # Who has no session is alone in one of its own.
    own = _codes([("session", s) if s is not None else ("none", n) for n, s in enumerate(sessions)])
    return np.asarray(own[:, None] != own[None, :])


def _codes(values: Sequence[Hashable]) -> npt.NDArray[np.int64]:
    numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([numbers[value] for value in values], dtype=np.int64)


def _kernel(distances_JN: Floats) -> Floats:
    """Return the weight of each neighbour; 0 where the distance is infinite."""
    weights = np.zeros_like(distances_JN)
    for row, distances in zip(weights, distances_JN, strict=True):
        known = np.sort(distances[np.isfinite(distances)])
        if not len(known):
            continue
        bandwidth = known[int(np.ceil(np.sqrt(len(known)))) - 1]
        # Where the nearest are the very same task they alone count.
        same = distances <= MIN_DISTANCE
        row[:] = np.exp(-distances / bandwidth) if bandwidth > MIN_DISTANCE else same
    return np.where(weights < MIN_WEIGHT, 0.0, weights)


def _means(weights_JN: Floats, outcomes_N: Floats, others_NI: Flags) -> tuple[Floats, Floats]:
    """Return [j, i], the weighted mean for j without i's session, and the size it rests on.

    The size is 0, and the mean 0, where nothing is left.
    """
    seen = others_NI.astype(np.float64)
    totals = weights_JN @ seen
    squares = np.square(weights_JN) @ seen
    sums = weights_JN @ (outcomes_N[:, None] * seen)
    some = totals > 0
    means = np.divide(sums, totals, out=np.zeros_like(sums), where=some)
    sizes = np.divide(np.square(totals), squares, out=np.zeros_like(sums), where=some)
    return means, sizes


def _shrunk(
    means_JI: Floats, sizes_JI: Floats, prior_JI: Floats, outcomes_N: Floats, others_JI: Flags
) -> Floats:
    """Move the prior towards the means as far as they proved to be right: [j, i]."""
    surprises = np.where(others_JI & (sizes_JI > 0), outcomes_N[:, None] - prior_JI, 0.0)
    shifts = np.where(sizes_JI > 0, means_JI - prior_JI, 0.0)
    whole_I = np.square(surprises).sum(axis=0)
    told_I = np.clip((surprises * shifts).sum(axis=0), 0.0, whole_I)
    told, noise = sizes_JI * told_I, whole_I - told_I
    weight = np.divide(told, told + noise, out=np.zeros_like(told), where=told + noise > 0)
    shrunk: Floats = prior_JI + weight * shifts
    return shrunk
