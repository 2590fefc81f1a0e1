"""Looks at skills again with all their texts in view: what to split, found, merge, and move.

What came in one text at a time depends on the order; this does not, much. Pure functions of
vectors: no id is made or lost here, and it knows nothing of how skills are stored. A skill that a
person has said a word about is ``is_fixed``: others may join it, it stays whole. Skills of two
policies have nothing to do with each other: no text changes from one to the other.

Groups are compared by Ward's distance ``sqrt(2ab / (a + b)) * |mean_a - mean_b|``: the more texts
say so, the smaller a difference counts. What is already one skill is split only from a greater
distance than two skills are merged at, so that nothing flickers.

Axes: ``N`` vectors, ``D`` dimensions, ``G`` groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage  # type: ignore[import-untyped]
from scipy.spatial.distance import pdist  # type: ignore[import-untyped]

Vectors = NDArray[np.float32]

SPLIT_FROM = 4.0
"""Ward's distance from which two parts of one skill become two skills."""
SPLIT_SIMILARITY = 0.5
"""Cosine of two parts' centroids below which they are two skills, however few texts they have."""
CUT_AT = 2.0
"""Ward's distance at which a skill is cut into parts, before those of one kind are joined again."""
MERGE_BELOW = 3.0
"""Ward's distance below which two skills become one."""
MERGE_SIMILARITY = 0.6
"""Cosine of two skills' centroids below which they stay apart, however few texts they have."""
FOUND_SIMILARITY = 0.5
"""Mean cosine between waiting texts from which they are one kind."""
JOIN_SIMILARITY = 0.4
"""Cosine from which a text that waits joins the nearest skill."""
MOVE_MARGIN = 0.1
"""How much nearer another skill must be before a text changes its own."""
BLOCK = 256
"""Rows of distances held at once: all of 5,000 skills' would take 200 MB, several times over."""
COMPARED = 100
"""Texts that speak for a skill in Ward's distance at most: a large one is not split for trifles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """A skill, and a sample of its texts.

    Example:
        ``Group(skill_id=2, vectors_ND=…, is_fixed=False)``
    """

    skill_id: int
    vectors_ND: Vectors  # of length 1
    is_fixed: bool = False
    policy: str = ""  # only groups of the same one exchange texts
    num_unseen: int = 0  # texts of the skill that are not in the sample

    @property
    def num_texts(self) -> int:
        """Count all texts of the skill."""
        return len(self.vectors_ND) + self.num_unseen


@dataclass(frozen=True, kw_only=True, slots=True)
class Regrouped:
    """A group as it should be.

    Example:
        ``Regrouped(skill_id=None, split_from=2, members=[(2, 0), (2, 5), (None, 3)])``
    """

    skill_id: int | None  # the skill that it is; None: a new one
    split_from: int | None = None  # where a new one's first texts were
    absorbs: Sequence[int] = ()  # skills that become part of it
    members: Sequence[tuple[int | None, int]] = ()  # (skill, or None: the pen; row there)


@dataclass(slots=True)
class _Part:
    """A group on its way."""

    skill_id: int | None
    rows: NDArray[np.int64]  # into all vectors
    split_from: int | None = None
    is_fixed: bool = False
    policy: str | None = None  # None: of texts that waited, which may join any
    absorbs: list[int] = field(default_factory=list)


def regroup(groups: Sequence[Group], pen_ND: Vectors, *, min_size: int) -> list[Regrouped]:
    """Say how skills and waiting texts should be grouped.

    Args:
        groups: the skills of one tenant.
        pen_ND: the texts that wait.
        min_size: texts that make a skill.

    Returns:
        The groups; what waits on is in none.
    """
    all_ND = np.concatenate([*(group.vectors_ND for group in groups), pen_ND])
    origin: list[tuple[int | None, int]] = [
        (group.skill_id, row) for group in groups for row in range(len(group.vectors_ND))
    ]
    origin += [(None, row) for row in range(len(pen_ND))]
    parts = _split(groups, all_ND, min_size)
    waiting = np.arange(len(all_ND) - len(pen_ND), len(all_ND))
    parts += _found(all_ND, waiting, min_size)
    _settle(parts, all_ND, waiting)  # strays would draw the means of their skills together
    left = [part for part in parts if not len(part.rows) and part.skill_id is not None]
    parts = [part for part in parts if len(part.rows)]
    parts = _merge(parts, all_ND, below=MERGE_BELOW, similarity=MERGE_SIMILARITY)
    _settle(parts, all_ND, waiting)
    return [
        Regrouped(
            skill_id=part.skill_id,
            split_from=part.split_from,
            absorbs=tuple(part.absorbs),
            members=[origin[row] for row in part.rows],
        )
        for part in [*parts, *left]
    ]


def _split(groups: Sequence[Group], all_ND: Vectors, min_size: int) -> list[_Part]:
    """Take each skill apart where its texts are of several kinds; the largest part stays it."""
    parts = []
    begin = 0
    for group in groups:
        rows = np.arange(begin, begin + len(group.vectors_ND))
        begin += len(rows)
        if group.is_fixed or len(rows) < 2 * min_size:
            parts.append(_Part(group.skill_id, rows, is_fixed=group.is_fixed, policy=group.policy))
            continue
        labels = _whole(_cut_ward(all_ND[rows]), all_ND[rows], min_size)
        kinds = [
            _Part(None, rows[labels == label], policy=group.policy) for label in np.unique(labels)
        ]
        kinds = _merge(kinds, all_ND, below=SPLIT_FROM, similarity=SPLIT_SIMILARITY)
        kinds.sort(key=lambda part: len(part.rows), reverse=True)
        kinds[0].skill_id = group.skill_id
        for kind in kinds[1:]:
            kind.split_from = group.skill_id
        parts += kinds
    return parts


def _cut_ward(vectors_ND: Vectors) -> NDArray[np.int64]:
    tree = linkage(vectors_ND.astype(np.float64), "ward")
    return np.asarray(fcluster(tree, CUT_AT, "distance"), dtype=np.int64) - 1


def _whole(labels: NDArray[np.int64], vectors_ND: Vectors, min_size: int) -> NDArray[np.int64]:
    """Give the texts of parts that are too small to the nearest large one."""
    sizes = np.bincount(labels)
    large = np.flatnonzero(sizes >= min_size)
    if not len(large):
        return np.zeros_like(labels)
    means_GD = np.stack([vectors_ND[labels == label].mean(axis=0) for label in large])
    nearest = large[(vectors_ND @ _unit(means_GD).T).argmax(axis=1)]
    return np.where(np.isin(labels, large), labels, nearest)


def _found(all_ND: Vectors, waiting: NDArray[np.int64], min_size: int) -> list[_Part]:
    if len(waiting) < max(2, min_size):
        return []
    tree = linkage(pdist(all_ND[waiting].astype(np.float64), "cosine"), "average")
    labels = fcluster(tree, 1.0 - FOUND_SIMILARITY, "distance")
    found = [waiting[labels == label] for label in np.unique(labels)]
    return [_Part(None, rows) for rows in found if len(rows) >= min_size]


def _merge(
    parts: Sequence[_Part], all_ND: Vectors, *, below: float, similarity: float
) -> list[_Part]:
    """Join the two nearest groups again and again, while any two are near enough."""
    parts = list(parts)
    sizes, means = [], []
    for part in parts:
        sizes.append(float(min(len(part.rows), COMPARED)))
        means.append(all_ND[part.rows].mean(axis=0, dtype=np.float64))
    while len(parts) > 1:
        nearest = _nearest(parts, np.array(sizes), np.stack(means), similarity)
        if nearest is None or nearest[0] >= below:
            break
        _, first, second = nearest
        total = sizes[first] + sizes[second]
        means[first] = (sizes[first] * means[first] + sizes[second] * means[second]) / total
        sizes[first] = min(total, float(COMPARED))
        parts[first] = _joined(parts[first], parts[second])
        for kept in (parts, sizes, means):
            del kept[second]
    return parts


def _nearest(
    parts: Sequence[_Part],
    sizes_G: NDArray[np.float64],
    means_GD: NDArray[np.float64],
    similarity: float,
) -> tuple[float, int, int] | None:
    """Return Ward's distance between the two nearest groups that may become one, and which."""
    unit_GD = _unit(means_GD)
    squares_G = (means_GD**2).sum(axis=1)
    policies_G = _policies(parts)
    free = np.flatnonzero([not part.is_fixed for part in parts])  # one of two has to be
    found: list[tuple[float, int, int]] = []
    for rows in (free[at : at + BLOCK] for at in range(0, len(free), BLOCK)):
        gaps_BG = squares_G[rows, None] + squares_G - 2 * means_GD[rows] @ means_GD.T
        weights_BG = 2 * sizes_G[rows, None] * sizes_G / (sizes_G[rows, None] + sizes_G)
        ward_BG = np.sqrt(weights_BG * np.maximum(gaps_BG, 0.0))
        ward_BG[unit_GD[rows] @ unit_GD.T < similarity] = np.inf
        ward_BG[~_may_join(policies_G[rows], policies_G)] = np.inf
        ward_BG[np.arange(len(rows)), rows] = np.inf
        row, other = map(int, np.unravel_index(ward_BG.argmin(), ward_BG.shape))
        first, second = sorted((int(rows[row]), other))
        found.append((float(ward_BG[row, other]), first, second))
    return min(found, default=None)


def _policies(parts: Sequence[_Part]) -> NDArray[np.int64]:
    """Return a number for each group's policy; -1: none yet."""
    names = sorted({part.policy for part in parts if part.policy is not None})
    return np.array([-1 if part.policy is None else names.index(part.policy) for part in parts])


def _may_join(policies_B: NDArray[np.int64], policies_G: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say of each pair [B, G] whether the two may exchange texts."""
    same_BG = policies_B[:, None] == policies_G
    return np.asarray(same_BG | (policies_B[:, None] < 0) | (policies_G < 0), dtype=np.bool_)


def _joined(one: _Part, other: _Part) -> _Part:
    """Return both as one: a fixed skill if one is, else a known one, else the larger's name."""
    keeper, goer = sorted(
        (one, other),
        key=lambda part: (part.is_fixed, part.skill_id is not None, len(part.rows)),
        reverse=True,
    )
    gone = [] if goer.skill_id is None else [goer.skill_id]
    return _Part(
        keeper.skill_id,
        np.concatenate([keeper.rows, goer.rows]),
        split_from=keeper.split_from,
        is_fixed=keeper.is_fixed,
        policy=goer.policy if keeper.policy is None else keeper.policy,
        absorbs=[*keeper.absorbs, *goer.absorbs, *gone],
    )


def _settle(parts: list[_Part], all_ND: Vectors, waiting: NDArray[np.int64]) -> None:
    """Move each text to a group that is clearly nearer, and let those that wait join one."""
    if not parts:
        return
    means_GD = _unit(np.stack([all_ND[part.rows].mean(axis=0) for part in parts]))
    policies_G = _policies(parts)
    own_N = np.full(len(all_ND), -1)
    for number, part in enumerate(parts):
        own_N[part.rows] = number
    stays_N = np.array([part.is_fixed for part in parts])[own_N]
    stays_N[waiting] = False
    is_loose_N = np.zeros(len(all_ND), dtype=bool)
    is_loose_N[waiting] = True
    for rows in (np.arange(at, min(at + BLOCK, len(own_N))) for at in range(0, len(own_N), BLOCK)):
        near_BG = all_ND[rows] @ means_GD.T
        own_B = own_N[rows]
        policies_B = np.where(is_loose_N[rows], -1, policies_G[own_B])
        near_BG[~_may_join(policies_B, policies_G)] = -np.inf
        best_B, nearest_B = near_BG.argmax(axis=1), near_BG.max(axis=1)
        margin_B = nearest_B - near_BG[np.arange(len(rows)), own_B]
        joins_B = (own_B < 0) & is_loose_N[rows] & (nearest_B >= JOIN_SIMILARITY)
        moves_B = (own_B >= 0) & (margin_B >= MOVE_MARGIN) & ~stays_N[rows]
        own_N[rows] = np.where(joins_B | moves_B, best_B, own_B)
    for number, part in enumerate(parts):
        part.rows = np.flatnonzero(own_N == number)


def _unit(vectors_GD: NDArray[np.floating]) -> NDArray[np.floating]:
    norms = np.linalg.norm(vectors_GD, axis=1, keepdims=True)
    unit_GD: NDArray[np.floating] = vectors_GD / np.where(norms == 0.0, 1.0, norms)
    return unit_GD
