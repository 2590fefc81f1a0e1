"""Says by how much more speaks for texts where a plan has them than where they are.

A look may not do all of its plan at once; this says what is worth most. Of texts that a plan takes
from one skill to another group, what is won is the evidence for them and the others of that group
being one kind, less the evidence for them and the rest of their skill (``memory/kinship.py``).
Against nobody the evidence is what two groups need to be one kind: so a merge wins what speaks for
it beyond that, and a split what is missing from it. It may be less than nothing: what a plan puts
together anew from small groups is better altogether, not in each step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memory.alike import Vectors
from memory.kinship import Floats, evidence, required
from memory.regroup import Group, Member, Regrouped


@dataclass(frozen=True, slots=True)
class _Sum:
    """Texts as the evidence sees them."""

    num: int
    total_D: Floats

    @classmethod
    def of(cls, vectors_ND: Vectors) -> "_Sum":
        return cls(len(vectors_ND), vectors_ND.sum(axis=0, dtype=np.float64))

    def without(self, part: "_Sum") -> "_Sum":
        return _Sum(self.num - part.num, self.total_D - part.total_D)


class Gains:
    """Of one plan."""

    def __init__(
        self,
        groups: Sequence[Group],
        pen_ND: Vectors,
        plan: Sequence[Regrouped],
        *,
        threshold: float,
    ) -> None:
        self._vectors: dict[int | None, Vectors] = {g.skill_id: g.vectors_ND for g in groups}
        self._vectors[None] = pen_ND
        self._plan = plan
        self._enough = required(threshold)
        self._skills: dict[int | None, _Sum] = {}
        self._kinds: dict[int, _Sum] = {}

    def gain(self, leaving: Sequence[Member], joining: Sequence[Member], to: int) -> float:
        """Return what is won when texts leave their skill; per dimension, as all evidence.

        Args:
            leaving: texts of one skill, at least one.
            joining: those of them that go to the group.
            to: place of the group in the plan.
        """
        [skill_id] = {skill_id for skill_id, _ in leaving}
        if skill_id not in self._skills:
            self._skills[skill_id] = _Sum.of(self._vectors[skill_id])
        if to not in self._kinds:
            self._kinds[to] = self._sum(self._plan[to].members)
        left, joined = self._sum(leaving), self._sum(joining)
        there = self._speaks(joined, self._kinds[to].without(joined))
        return there - self._speaks(left, self._skills[skill_id].without(left))

    def _sum(self, members: Sequence[Member]) -> _Sum:
        rows: dict[int | None, list[int]] = {}
        for skill_id, row in members:
            rows.setdefault(skill_id, []).append(row)
        found = [self._vectors[skill_id][own] for skill_id, own in rows.items()]
        return _Sum.of(np.concatenate([self._vectors[None][:0], *found]))

    def _speaks(self, one: _Sum, other: _Sum) -> float:
        if one.num < 1 or other.num < 1:
            return self._enough
        mean_D, other_D = one.total_D / one.num, other.total_D / other.num
        found = evidence(
            np.array([float(one.num)]),
            np.array([mean_D @ mean_D]),
            np.array([float(other.num)]),
            np.array([other_D @ other_D]),
            np.array([mean_D @ other_D]),
        )
        return float(found[0])
