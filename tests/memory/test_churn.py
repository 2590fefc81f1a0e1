from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.churn import allowance, bounded, num_moved
from memory.regroup import Group, Member, Regrouped


def group(skill_id: int, num: int, num_unseen: int = 0) -> Group:
    vectors_ND = np.ones((num, 1), dtype=np.float32)
    return Group(skill_id=skill_id, vectors_ND=vectors_ND, num_unseen=num_unseen)


def same(leaving: Sequence[Member], joining: Sequence[Member], to: int) -> float:
    return 1.0


def rows(skill_id: int, *numbers: int) -> list[tuple[int | None, int]]:
    return [(skill_id, number) for number in numbers]


def by_skill(plan: list[Regrouped]) -> dict[int | None, list[tuple[int | None, int]]]:
    return {one.skill_id: sorted(one.members, key=str) for one in plan}


@pytest.mark.parametrize(
    ("texts", "allowed"), [(0, 0), (19, 19), (20, 1), (39, 1), (40, 2), (1_000, 50)]
)
def test_a_twentieth_of_the_texts_may_move_and_of_a_handful_all(texts: int, allowed: int) -> None:
    assert allowance([group(1, 0, num_unseen=texts)]) == allowed


def test_plan_that_moves_little_is_done_as_it_is() -> None:
    groups = [group(1, 3), group(2, 2)]
    plan = [
        Regrouped(skill_id=1, members=[*rows(1, 0, 1), *rows(2, 0)]),
        Regrouped(skill_id=2, members=[*rows(2, 1), *rows(1, 2), (None, 0)]),
    ]
    assert num_moved(groups, plan) == 2
    assert by_skill(bounded(groups, plan, gain=same, allowed=2, min_size=2)) == by_skill(plan)


def test_merge_counts_the_texts_out_of_view_and_is_begun_with_the_newest_when_it_is_too_large() -> (
    None
):
    groups = [group(1, 4), group(2, 3, num_unseen=5)]
    plan = [Regrouped(skill_id=1, absorbs=[2], members=[*rows(1, 0, 1, 2, 3), *rows(2, 0, 1, 2)])]
    assert num_moved(groups, plan) == 8
    assert bounded(groups, plan, gain=same, allowed=8, min_size=2) == plan
    begun = bounded(groups, plan, gain=same, allowed=2, min_size=2)
    assert by_skill(begun) == {1: [*rows(1, 0, 1, 2, 3), *rows(2, 0, 1)], 2: rows(2, 2)}
    assert [one.absorbs for one in begun] == [[], ()]
    assert num_moved(groups, begun) == 2


def test_split_begins_with_as_many_as_make_a_skill_or_waits() -> None:
    groups = [group(1, 9)]
    new = Regrouped(skill_id=None, split_from=1, members=[*rows(1, 5, 6, 7, 8), (None, 0)])
    plan = [Regrouped(skill_id=1, members=rows(1, 0, 1, 2, 3, 4)), new]
    kept, begun = bounded(groups, plan, gain=same, allowed=3, min_size=3)
    assert begun.members == [*rows(1, 5, 6, 7), (None, 0)]
    assert sorted(kept.members) == rows(1, 0, 1, 2, 3, 4, 8)
    [kept] = bounded(
        groups, plan, gain=same, allowed=2, min_size=3
    )  # and the text that waits waits on
    assert sorted(kept.members) == rows(1, *range(9))


def test_what_wins_most_for_each_text_comes_first_and_what_wins_nothing_last() -> None:
    groups = [group(1, 4), group(2, 4), group(3, 4)]
    plan = [
        Regrouped(skill_id=1, members=[*rows(1, 0, 1), *rows(2, 3)]),
        Regrouped(skill_id=2, members=[*rows(2, 0, 1, 2), *rows(3, 2, 3)]),
        Regrouped(skill_id=3, members=[*rows(3, 0, 1), *rows(1, 2, 3)]),
    ]
    won: dict[tuple[int | None, int], float] = {(1, 2): 0.6, (3, 1): 0.5, (2, 0): -0.1}

    def moved(allowed: int) -> set[Member]:
        done = bounded(
            groups,
            plan,
            gain=lambda leaving, joining, to: won[leaving[0][0], to],
            allowed=allowed,
            min_size=2,
        )
        return {m for one in done for m in one.members if m[0] != one.skill_id}

    assert moved(1) == {*rows(1, 2)}  # of two that do not fit, the newer
    assert moved(2) == {*rows(1, 2, 3)}
    assert moved(4) == {*rows(1, 2, 3), *rows(3, 2, 3)}
    assert moved(5) == {*rows(1, 2, 3), *rows(3, 2, 3), *rows(2, 3)}


def test_of_changes_that_win_alike_small_ones_come_before_large_ones() -> None:
    groups = [group(1, 6), group(2, 2), group(3, 2)]
    plan = [
        Regrouped(skill_id=1, members=rows(1, 0)),
        Regrouped(skill_id=2, members=[*rows(2, 0, 1), *rows(1, 1, 2, 3, 4, 5)]),
        Regrouped(skill_id=3, members=rows(3, 0), absorbs=[]),
        Regrouped(skill_id=None, members=[(None, 0), (None, 1), *rows(3, 1)]),
    ]
    done = by_skill(bounded(groups, plan, gain=same, allowed=3, min_size=2))
    assert done[None] == [*rows(3, 1), (None, 0), (None, 1)]
    assert done[2] == [*rows(1, 1, 2), *rows(2, 0, 1)]


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Group], list[Regrouped]]:
    """Draw skills, and any way to put their texts and those that wait together anew."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    groups = [group(n, size, draw(st.integers(0, 3))) for n, size in enumerate(sizes)]
    absorbed = draw(st.sets(st.integers(0, len(sizes) - 1), max_size=len(sizes) - 1))
    kept = [n for n in range(len(sizes)) if n not in absorbed]
    origins: list[int | None] = [n for n in range(len(sizes)) if draw(st.booleans())]
    origins += [None] * draw(st.integers(0, 2))
    into = {n: draw(st.sampled_from(kept)) for n in absorbed}
    plan = [Regrouped(skill_id=n, absorbs=[a for a in into if into[a] == n]) for n in kept]
    plan += [Regrouped(skill_id=None, split_from=origin) for origin in origins]
    members: list[list[tuple[int | None, int]]] = [[] for _ in plan]
    texts = [(g.skill_id, row) for g in groups for row in range(len(g.vectors_ND))]
    for member in [*texts, *((None, row) for row in range(draw(st.integers(0, 4))))]:
        members[draw(st.integers(0, len(plan) - 1))].append(member)
    made = [
        Regrouped(
            skill_id=one.skill_id, split_from=one.split_from, absorbs=one.absorbs, members=own
        )
        for one, own in zip(plan, members, strict=True)
    ]
    return groups, made


@given(plans(), st.integers(0, 30), st.integers(1, 4))
def test_never_more_is_moved_than_is_allowed_and_each_text_is_where_it_was_or_was_to_go(
    drawn: tuple[list[Group], list[Regrouped]], allowed: int, min_size: int
) -> None:
    groups, plan = drawn
    done = bounded(groups, plan, gain=same, allowed=allowed, min_size=min_size)
    assert num_moved(groups, done) <= allowed
    members = [member for one in done for member in one.members]
    assert len(members) == len(set(members))
    texts = {(g.skill_id, row) for g in groups for row in range(len(g.vectors_ND))}
    assert texts <= set(members) <= texts | {m for one in plan for m in one.members}
    ids = [one.skill_id for one in done if one.skill_id is not None]
    ids += [id for one in done for id in one.absorbs]
    assert sorted(ids) == [g.skill_id for g in groups]
    wanted = {member: (one.skill_id, one.split_from) for one in plan for member in one.members}
    for one in done:
        for member in one.members:
            is_home = member[0] in {one.skill_id, *one.absorbs}
            assert is_home or wanted[member] == (one.skill_id, one.split_from)


@given(plans())
def test_what_is_allowed_altogether_is_done_altogether_but_splits_of_too_few(
    drawn: tuple[list[Group], list[Regrouped]],
) -> None:
    groups, plan = drawn
    done = bounded(groups, plan, gain=same, allowed=10_000, min_size=0)
    assert by_skill(done).keys() == by_skill(plan).keys()
    assert num_moved(groups, done) == num_moved(groups, plan)
