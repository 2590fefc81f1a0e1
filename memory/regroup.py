"""Looks at skills again with all their texts in view: what to split, found, merge, and move.

What came in one text at a time depends on the order; this does not. Texts that are plainly alike
are gathered (``memory/alike.py``), whatever skill they came under, and put together anew, wherever
most speaks for it; only then is it asked which group is which skill. So neither what came under the
wrong skill nor that one kind came under two has a part in how kinds are found. A text of a skill
that is like no others there or elsewhere is a stray, and may wait again.

Pure functions of vectors: no id is made or lost here, and it knows nothing of how skills are
stored. A skill that a person has said a word about is ``is_fixed``: others may join it, it stays
whole. Skills of two policies have nothing to do with each other: no text changes from one to the
other.

What speaks for two groups being one kind, ``memory/kinship.py`` says: a little is enough for two
texts, much is needed for two hundred, so kinds of three texts stay apart and families of a hundred
stay whole.

Axes: ``N`` vectors, ``D`` dimensions, ``G`` groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memory.alike import Vectors, alike
from memory.kinship import SAME_KIND, Means, required

Member = tuple[int | None, int]
"""A text: its skill, or None for the pen, and its row there."""
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
    members: Sequence[Member] = ()
    strays: Sequence[Member] = ()  # of its own and what it absorbs: like no others, they may wait


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """Texts of one kind."""

    rows: NDArray[np.int64]  # into all vectors
    fixed_as: int | None = None  # place of the fixed skill that it is
    policy: str | None = None  # None: of texts that waited, which may join any

    @property
    def is_fixed(self) -> bool:
        """Say whether it has to stay whole."""
        return self.fixed_as is not None


@dataclass(frozen=True, slots=True)
class _Share:
    """How many texts of a skill are of one kind; both by their places."""

    num: int
    kind: int
    skill: int


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
    vectors = [*(group.vectors_ND for group in groups), pen_ND]
    sizes = [len(one) for one in vectors]
    all_ND = np.concatenate(vectors)
    home_N = np.repeat(np.arange(len(vectors)), sizes)  # the last is the pen
    row_N = np.concatenate([np.arange(size) for size in sizes])
    parts = _merge(_atoms(groups, all_ND, home_N, threshold), all_ND, required(threshold))
    kinds = [part for part in parts if part.is_fixed or len(part.rows) >= min_size]
    few = [part.rows for part in parts if not part.is_fixed and len(part.rows) < min_size]
    strays = np.concatenate([*few, np.zeros(0, dtype=np.int64)])
    return _planned(groups, kinds, strays, home_N, row_N)


def _planned(
    groups: Sequence[Group],
    kinds: Sequence[_Part],
    strays: NDArray[np.int64],
    home_N: NDArray[np.int64],
    row_N: NDArray[np.int64],
) -> list[Regrouped]:
    """Say of each kind which skill it is; a stray stays where it was."""
    ids = [*(group.skill_id for group in groups), None]
    shares = _shares(kinds, home_N, len(groups))
    skill_of, kind_of = _named(kinds, shares)
    origin_of = {share.kind: share.skill for share in reversed(shares)}
    parts_of: dict[int, list[int]] = {}
    for skill, number in kind_of.items():
        parts_of.setdefault(number, []).append(skill)
    staying = {skill: strays[home_N[strays] == skill] for skill in range(len(groups))}

    def members(rows: NDArray[np.int64]) -> list[Member]:
        return [(ids[home_N[row]], int(row_N[row])) for row in rows]

    plan = []
    for number in sorted(range(len(kinds)), key=lambda number: skill_of.get(number, len(groups))):
        named, parts = skill_of.get(number), parts_of.get(number, [])
        begun = origin_of.get(number) if named is None else None
        alone = np.concatenate([strays[:0], *(staying[skill] for skill in parts)])
        plan.append(
            Regrouped(
                skill_id=None if named is None else ids[named],
                split_from=None if begun is None else ids[begun],
                absorbs=tuple(groups[skill].skill_id for skill in parts if skill != named),
                members=members(np.concatenate([kinds[number].rows, alone])),
                strays=members(alone),
            )
        )
    lonely = [skill for skill in range(len(groups)) if skill not in kind_of]
    return plan + [
        Regrouped(skill_id=ids[n], members=members(staying[n]), strays=members(staying[n]))
        for n in lonely
    ]


def _shares(kinds: Sequence[_Part], home_N: NDArray[np.int64], num_skills: int) -> list[_Share]:
    """Count the texts that skills and kinds have in common, most first; the pen is no skill."""
    found = []
    for number, kind in enumerate(kinds):
        skills, nums = np.unique(home_N[kind.rows], return_counts=True)
        for skill, num in zip(skills.tolist(), nums.tolist(), strict=True):
            if skill < num_skills:
                found.append(_Share(num, number, skill))
    return sorted(found, key=lambda share: (-share.num, share.kind, share.skill))


def _named(
    kinds: Sequence[_Part], shares: Sequence[_Share]
) -> tuple[dict[int, int], dict[int, int]]:
    """Say which skill a kind is, if any, and of which kind each skill is or becomes part.

    The largest shares come first, so that most texts keep their skill. A skill that no kind is
    becomes part of the kind with most of its texts; that one is a skill then, else it would be it.
    """
    skill_of = {n: kind.fixed_as for n, kind in enumerate(kinds) if kind.fixed_as is not None}
    kind_of = {skill: number for number, skill in skill_of.items()}
    for share in shares:
        if share.kind not in skill_of and share.skill not in kind_of:
            skill_of[share.kind], kind_of[share.skill] = share.skill, share.kind
    for share in shares:
        kind_of.setdefault(share.skill, share.kind)
    return skill_of, kind_of


def _atoms(
    groups: Sequence[Group], all_ND: Vectors, home_N: NDArray[np.int64], threshold: float
) -> list[_Part]:
    """Gather what is plainly alike, whatever skill it came under; fixed skills stay whole."""
    fixed_N = np.array([*(group.is_fixed for group in groups), False])[home_N]
    atoms = [
        _Part(rows=np.flatnonzero(home_N == number), fixed_as=number, policy=group.policy)
        for number, group in enumerate(groups)
        if group.is_fixed and len(group.vectors_ND)
    ]
    policies = [*(group.policy for group in groups), None]
    for rows in alike(all_ND, np.flatnonzero(~fixed_N), threshold):
        by_policy: dict[str | None, list[int]] = {}
        for row in rows.tolist():
            by_policy.setdefault(policies[home_N[row]], []).append(row)
        if len({*by_policy} - {None}) == 1:  # what waits may join any
            [policy] = {*by_policy} - {None}
            by_policy = {policy: rows.tolist()}
        atoms += [_Part(rows=np.array(own), policy=policy) for policy, own in by_policy.items()]
    return atoms


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
    """Return both as one: a fixed skill if one is."""
    return _Part(
        rows=np.concatenate([one.rows, other.rows]),
        fixed_as=other.fixed_as if one.fixed_as is None else one.fixed_as,
        policy=other.policy if one.policy is None else one.policy,
    )
