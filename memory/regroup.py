"""Looks at skills again with all their texts in view: what to split, found, merge, and move.

What came in one text at a time depends on the order; this does not, much. Pure functions of
vectors: no id is made or lost here, and it knows nothing of how skills are stored. A skill that a
person has said a word about is ``is_fixed``: others may join it, it stays whole. Skills of two
policies have nothing to do with each other: no text changes from one to the other.

What speaks for two groups being one kind, ``memory/kinship.py`` says: a little is enough for two
texts, much is needed for two hundred, so kinds of three texts stay apart and families of a hundred
stay whole. What is already one skill is split only where less speaks for it than makes one skill of
two, so that nothing flickers.

Axes: ``N`` vectors, ``D`` dimensions, ``G`` groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage  # type: ignore[import-untyped]
from scipy.spatial.distance import pdist  # type: ignore[import-untyped]

from memory.kinship import SAME_KIND, Means, required

Vectors = NDArray[np.float32]

HYSTERESIS = 0.1
"""How much less evidence keeps the parts of one skill together than makes two skills one. What
was joined wrongly stays the longer, the greater it is: with 0.3 small kinds lose 0.01 of V-measure
in the calibration (with 12 voices; six orders)."""
MOVE_MARGIN = 0.1
"""How much nearer another skill must be before a text changes its own, as a cosine."""
BLOCK = 256
"""Rows of distances held at once: all of 5,000 skills' would take 200 MB, several times over."""


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


def regroup(
    groups: Sequence[Group], pen_ND: Vectors, *, min_size: int, threshold: float = SAME_KIND
) -> list[Regrouped]:
    """Say how skills and waiting texts should be grouped.

    Args:
        groups: the skills of one tenant.
        pen_ND: the texts that wait.
        min_size: texts that make a skill.
        threshold: cosine from which two texts are of one kind.

    Returns:
        The groups; what waits on is in none.
    """
    all_ND = np.concatenate([*(group.vectors_ND for group in groups), pen_ND])
    origin: list[tuple[int | None, int]] = [
        (group.skill_id, row) for group in groups for row in range(len(group.vectors_ND))
    ]
    origin += [(None, row) for row in range(len(pen_ND))]
    enough = required(threshold)
    parts = _split(groups, all_ND, min_size, threshold)
    _settle(parts, all_ND)  # strays would draw the means of their skills together
    left = [part for part in parts if not len(part.rows) and part.skill_id is not None]
    parts = [part for part in parts if len(part.rows)]
    waiting = np.arange(len(all_ND) - len(pen_ND), len(all_ND))
    parts += [_Part(None, rows) for rows in _alike(all_ND, waiting, threshold)]
    parts = _merge(parts, all_ND, enough)
    parts = [part for part in parts if part.policy is not None or len(part.rows) >= min_size]
    _settle(parts, all_ND)
    parts = [
        part for part in parts if part.skill_id is not None or _may_begin(part, waiting, min_size)
    ]
    return [
        Regrouped(
            skill_id=part.skill_id,
            split_from=part.split_from,
            absorbs=tuple(part.absorbs),
            members=[origin[row] for row in part.rows],
        )
        for part in [*parts, *left]
    ]


def _may_begin(part: _Part, waiting: NDArray[np.int64], min_size: int) -> bool:
    """Say whether texts may be a new skill; of those that wait, only enough together."""
    if part.policy is None and np.isin(part.rows, waiting).all():
        return len(part.rows) >= min_size
    return len(part.rows) > 0


def _split(
    groups: Sequence[Group], all_ND: Vectors, min_size: int, threshold: float
) -> list[_Part]:
    """Take each skill apart where its texts are of several kinds; the largest part stays it."""
    parts = []
    begin = 0
    for group in groups:
        rows = np.arange(begin, begin + len(group.vectors_ND))
        begin += len(rows)
        if group.is_fixed or len(rows) < 2 * min_size:
            parts.append(_Part(group.skill_id, rows, is_fixed=group.is_fixed, policy=group.policy))
            continue
        kinds = [_Part(None, own, policy=group.policy) for own in _alike(all_ND, rows, threshold)]
        kinds = _merge(kinds, all_ND, required(threshold) - HYSTERESIS)
        kinds = _whole(kinds, all_ND, min_size)
        kinds.sort(key=lambda part: len(part.rows), reverse=True)
        kinds[0].skill_id = group.skill_id
        for kind in kinds[1:]:
            kind.split_from = group.skill_id
        parts += kinds
    return parts


def _alike(all_ND: Vectors, rows: NDArray[np.int64], threshold: float) -> list[NDArray[np.int64]]:
    """Gather texts whose mean cosine is at least the threshold; most are alone at first."""
    if len(rows) < 2:
        return [rows] if len(rows) else []
    tree = linkage(pdist(all_ND[rows].astype(np.float64), "cosine"), "average")
    labels = fcluster(tree, 1.0 - threshold, "distance")
    return [rows[labels == label] for label in np.unique(labels)]


def _whole(kinds: Sequence[_Part], all_ND: Vectors, min_size: int) -> list[_Part]:
    """Give the texts of parts that are too small to the nearest large one."""
    large = [kind for kind in kinds if len(kind.rows) >= min_size]
    if not large:
        return [replace(kinds[0], rows=np.concatenate([kind.rows for kind in kinds]))]
    means_GD = _unit(np.stack([all_ND[kind.rows].mean(axis=0) for kind in large]))
    for kind in kinds:
        if len(kind.rows) < min_size:
            nearest = (all_ND[kind.rows].mean(axis=0) @ means_GD.T).argmax()
            large[nearest].rows = np.concatenate([large[nearest].rows, kind.rows])
    return large


def _merge(parts: Sequence[_Part], all_ND: Vectors, enough: float) -> list[_Part]:
    """Join the two groups for which most speaks again and again, while enough does."""
    if len(parts) < 2:
        return list(parts)
    pairs = _Pairs(parts, Means.of([all_ND[part.rows] for part in parts]))
    joined: dict[int, _Part] = dict(enumerate(parts))
    while (pair := pairs.nearest(enough)) is not None:
        first, second = pair
        joined[first] = _joined(joined[first], joined.pop(second))
        pairs.merge(first, second, joined[first])
    return list(joined.values())


class _Pairs:
    """Knows of each group that may be given up with which other one it goes best."""

    def __init__(self, parts: Sequence[_Part], means: Means) -> None:
        self._means = means
        self._policies_G = _policies(parts)
        self._is_free_G = np.array([not part.is_fixed for part in parts])  # one of two has to be
        self._is_gone_G = np.zeros(len(parts), dtype=bool)
        self._best_G = np.full(len(parts), -np.inf)
        self._other_G = np.zeros(len(parts), dtype=np.int64)
        self._look_again(np.flatnonzero(self._is_free_G))

    def nearest(self, enough: float) -> tuple[int, int] | None:
        """Return the two groups for which most speaks, if enough does; the first stays."""
        one = int(self._best_G.argmax())
        if self._best_G[one] < enough:
            return None
        first, second = sorted((one, int(self._other_G[one])))
        return first, second

    def merge(self, first: int, second: int, joined: _Part) -> None:
        """Let the first group be both."""
        self._means.merge(first, second)
        self._is_gone_G[second] = True
        self._is_free_G[[first, second]] = not joined.is_fixed, False
        self._policies_G[first] = max(self._policies_G[first], self._policies_G[second])
        self._best_G[[first, second]] = -np.inf
        row_G = self._rows(np.array([first]))[0]
        stale_G = self._is_free_G & np.isin(self._other_G, (first, second))
        nearer_G = self._is_free_G & ~stale_G & (row_G > self._best_G)
        self._best_G[nearer_G], self._other_G[nearer_G] = row_G[nearer_G], first
        stale_G[first] = self._is_free_G[first]
        self._look_again(np.flatnonzero(stale_G))

    def _look_again(self, groups: NDArray[np.int64]) -> None:
        for rows in (groups[at : at + BLOCK] for at in range(0, len(groups), BLOCK)):
            found_BG = self._rows(rows)
            self._other_G[rows] = found_BG.argmax(axis=1)
            self._best_G[rows] = found_BG.max(axis=1)

    def _rows(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        found_BG = self._means.kinship(rows)
        found_BG[~_may_join(self._policies_G[rows], self._policies_G)] = -np.inf
        found_BG[:, self._is_gone_G] = -np.inf
        found_BG[np.arange(len(rows)), rows] = -np.inf
        return found_BG


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


def _settle(parts: list[_Part], all_ND: Vectors) -> None:
    """Move each text of a group to one that is clearly nearer."""
    if len(parts) < 2:
        return
    means_GD = _unit(np.stack([all_ND[part.rows].mean(axis=0) for part in parts]))
    policies_G = _policies(parts)
    stays_G = np.array([part.is_fixed for part in parts])
    own_N = np.full(len(all_ND), -1)
    for number, part in enumerate(parts):
        own_N[part.rows] = number
    grouped = np.flatnonzero(own_N >= 0)
    for rows in (grouped[at : at + BLOCK] for at in range(0, len(grouped), BLOCK)):
        near_BG = all_ND[rows] @ means_GD.T
        own_B = own_N[rows]
        near_BG[~_may_join(policies_G[own_B], policies_G)] = -np.inf
        margin_B = near_BG.max(axis=1) - near_BG[np.arange(len(rows)), own_B]
        moves_B = (margin_B >= MOVE_MARGIN) & ~stays_G[own_B]
        own_N[rows] = np.where(moves_B, near_BG.argmax(axis=1), own_B)
    for number, part in enumerate(parts):
        part.rows = np.flatnonzero(own_N == number)


def _unit(vectors_GD: NDArray[np.floating]) -> NDArray[np.floating]:
    norms = np.linalg.norm(vectors_GD, axis=1, keepdims=True)
    unit_GD: NDArray[np.floating] = vectors_GD / np.where(norms == 0.0, 1.0, norms)
    return unit_GD
