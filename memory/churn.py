"""Bounds what one look at the skills may change, so that most episodes keep their skill's number.

A look that would move more than it may does first what wins most for each text, and of what does
not fit as many texts as do, the newest: the rest follows at the next looks, and new texts join the
right skill meanwhile. Pure functions of plans; it does not know what is won.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from memory.regroup import Group, Member, Regrouped

Gain = Callable[[Sequence[Member], Sequence[Member], int], float]
"""Says what is won when texts leave a skill, and these of them join one group of the plan."""

MOVED_AT_MOST = 0.05
"""Part of a tenant's texts that have a skill already and get another one at a look."""
FREE_BELOW = 20
"""Texts of which that part is none: with so few, all may move."""


@dataclass(frozen=True, slots=True)
class _Move:
    """Texts of one skill that go to one group, or all of a skill that becomes part of another."""

    skill_id: int
    to: int  # place in the plan
    is_whole: bool  # all go, a few perhaps to other groups
    cost: int  # texts


def allowance(groups: Sequence[Group]) -> int:
    """Return how many texts may get another skill at a look."""
    total = sum(group.num_texts for group in groups)
    return total if total < FREE_BELOW else int(MOVED_AT_MOST * total)


def num_moved(groups: Sequence[Group], plan: Sequence[Regrouped]) -> int:
    """Count the texts that a plan takes from one skill to another, those out of view included."""
    return sum(move.cost for move in _moves(groups, plan))


def bounded(
    groups: Sequence[Group],
    plan: Sequence[Regrouped],
    *,
    gain: Gain,
    allowed: int,
    min_size: int,
) -> list[Regrouped]:
    """Return what of a plan may be done now.

    Args:
        groups: the skills as they are.
        plan: as they should be.
        gain: what each change wins.
        allowed: texts that may be moved.
        min_size: a new skill that would begin with fewer waits until more may be moved.
    """
    done: set[Member] = set()  # what is moved
    gone: set[int] = set()  # skills that become part of others
    left = allowed
    for move, moving in _best_first(groups, plan, gain):
        if move.cost <= left:
            gone |= {move.skill_id} if move.is_whole else set()
        elif not move.is_whole and plan[move.to].skill_id is None and left < min_size:
            continue
        else:
            moving = sorted(moving, key=lambda member: member[1])[:left]
        done.update(moving)
        left -= move.cost if move.skill_id in gone else len(moving)
    return _only(groups, plan, done, gone, min_size)


def _best_first(
    groups: Sequence[Group], plan: Sequence[Regrouped], gain: Gain
) -> list[tuple[_Move, list[Member]]]:
    """Return the moves and what they move, those first that win most for each text."""
    going: dict[int | None, dict[int, list[Member]]] = {}
    for number, one in enumerate(plan):
        for member in one.members:
            going.setdefault(member[0], {}).setdefault(number, []).append(member)
    found = []
    for move in _moves(groups, plan):
        places = going[move.skill_id]
        moving = list(chain(*places.values())) if move.is_whole else places[move.to]
        won = gain(moving, places.get(move.to, []), move.to)
        found.append((-won / move.cost, move.cost, move.skill_id, move.to, move, moving))
    return [(move, moving) for *_, move, moving in sorted(found, key=lambda one: one[:4])]


def _moves(groups: Sequence[Group], plan: Sequence[Regrouped]) -> list[_Move]:
    whole = {skill_id: number for number, one in enumerate(plan) for skill_id in one.absorbs}
    found = [
        _Move(group.skill_id, whole[group.skill_id], True, group.num_texts)
        for group in groups
        if group.skill_id in whole
    ]
    for number, one in enumerate(plan):
        was = [skill for skill, _ in one.members if skill is not None and skill not in whole]
        for skill_id in sorted({*was} - {one.skill_id}):
            found.append(_Move(skill_id, number, False, was.count(skill_id)))
    return found


def _only(
    groups: Sequence[Group],
    plan: Sequence[Regrouped],
    done: set[Member],
    gone: set[int],
    min_size: int,
) -> list[Regrouped]:
    """Return a plan with some of its moves; all other texts stay where they are."""
    begun: list[Regrouped] = []
    for one in plan:
        members = [m for m in one.members if m[0] in {None, one.skill_id} or m in done]
        num_own = sum(skill == one.split_from for skill, _ in members)
        if one.split_from is None or num_own >= min_size:
            absorbs = [skill for skill in one.absorbs if skill in gone]
            begun.append(replace(one, members=members, absorbs=absorbs))
    known = {one.skill_id for one in begun}
    begun += [Regrouped(skill_id=g.skill_id) for g in groups if g.skill_id not in known | gone]
    home_of = {skill: one.skill_id for one in begun for skill in (one.skill_id, *one.absorbs)}
    placed = {member for one in begun for member in one.members}
    stay: dict[int | None, list[Member]] = {}
    for group in groups:
        rows = [(group.skill_id, row) for row in range(len(group.vectors_ND))]
        left = [member for member in rows if member not in placed]
        stay.setdefault(home_of[group.skill_id], []).extend(left)
    return [
        replace(one, members=[*one.members, *stay.get(one.skill_id, ())])
        if one.skill_id is not None
        else one
        for one in begun
    ]
