import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memory.alike import AT_ONCE
from memory.regroup import Group, Regrouped, regroup

D = 32


def around(axis: int, num: int, *, spread: float = 0.1, seed: int = 0) -> NDArray[np.float32]:
    """Return unit vectors near one axis; two axes are as far apart as two kinds of task."""
    rng = np.random.default_rng([seed, axis])
    vectors_ND = np.eye(D)[axis] + spread * rng.normal(size=(num, D))
    unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(unit_ND, dtype=np.float32)


NOTHING = np.zeros((0, D), dtype=np.float32)


def look(
    groups: list[Group], pen_ND: NDArray[np.float32] = NOTHING, min_size: int = 4
) -> list[Regrouped]:
    return regroup(groups, pen_ND, min_size=min_size)


def test_nothing_is_regrouped_to_nothing() -> None:
    assert look([]) == []


def test_one_kind_is_left_as_it_is() -> None:
    [one] = look([Group(skill_id=7, vectors_ND=around(0, 30))])
    assert (one.skill_id, one.split_from, one.absorbs) == (7, None, ())
    assert sorted(one.members) == [(7, row) for row in range(30)]


def test_skill_of_two_kinds_is_split_and_the_larger_part_stays_it() -> None:
    both = np.concatenate([around(0, 40), around(1, 30)])
    stays, new = look([Group(skill_id=7, vectors_ND=both)])
    assert (stays.skill_id, sorted(stays.members)) == (7, [(7, row) for row in range(40)])
    assert (new.skill_id, new.split_from) == (None, 7)
    assert sorted(new.members) == [(7, row) for row in range(40, 70)]


def test_two_skills_of_one_kind_become_the_larger_one() -> None:
    groups = [
        Group(skill_id=3, vectors_ND=around(0, 10)),
        Group(skill_id=9, vectors_ND=around(0, 30, seed=1)),
    ]
    [one] = look(groups)
    assert (one.skill_id, one.absorbs) == (9, (3,))
    assert len(one.members) == 40


def test_fixed_skill_is_never_split_nor_merged_away() -> None:
    both = np.concatenate([around(0, 40), around(1, 30)])
    fixed = [
        Group(skill_id=1, vectors_ND=both, is_fixed=True),
        Group(skill_id=2, vectors_ND=around(0, 5, seed=1), is_fixed=True),
    ]
    found = look([*fixed, Group(skill_id=3, vectors_ND=around(0, 50, seed=2))])
    kept = {one.skill_id: one for one in found if one.skill_id in {1, 2}}
    assert kept.keys() == {1, 2}
    assert {(1, row) for row in range(70)} <= {*kept[1].members}
    assert {(2, row) for row in range(5)} <= {*kept[2].members}
    # The skill that nobody has named becomes part of one that a person has.
    assert [one.skill_id for one in found if 3 in one.absorbs] == [2]


def test_what_waits_founds_a_skill_when_enough_are_alike_and_else_waits() -> None:
    pen = np.concatenate([around(0, 6), around(1, 3)])
    [one] = look([], pen)
    assert (one.skill_id, one.split_from) == (None, None)
    assert sorted(one.members) == [(None, row) for row in range(6)]


def test_what_waits_joins_a_skill_that_it_is_near() -> None:
    [one] = look([Group(skill_id=7, vectors_ND=around(0, 30))], around(0, 2, spread=0.2, seed=5))
    assert {(None, 0), (None, 1)} <= {*one.members}


def test_text_of_another_skill_is_moved_there() -> None:
    groups = [
        Group(skill_id=1, vectors_ND=np.concatenate([around(0, 30), around(1, 2, seed=3)])),
        Group(skill_id=2, vectors_ND=around(1, 30)),
    ]
    first, second = look(groups)
    assert len(first.members) == 30
    assert {(1, 30), (1, 31)} <= {*second.members}


def test_skills_of_two_policies_exchange_nothing_and_what_waits_joins_either() -> None:
    strays = around(0, 2, seed=3)
    groups = [
        Group(skill_id=1, vectors_ND=around(0, 30), is_fixed=True, policy="paused"),
        Group(skill_id=2, vectors_ND=around(0, 30, seed=1), policy="learn"),
        Group(skill_id=3, vectors_ND=np.concatenate([around(1, 30), strays]), policy="paused"),
    ]
    found = {one.skill_id: one for one in look(groups, around(0, 6, seed=9))}
    assert found.keys() == {1, 2, 3}
    assert all(not one.absorbs for one in found.values())
    homes = {skill: {was for was, _ in found[skill].members} for skill in (1, 2, 3)}
    assert homes[2] <= {2, None}
    assert {(2, row) for row in range(30)} <= {*found[2].members}
    assert {(3, 30), (3, 31)} <= {*found[1].members}  # between two of one policy, texts move
    waiting = [m for one in found.values() for m in one.members if m[0] is None]
    assert sorted(waiting) == [(None, row) for row in range(6)]


def test_thousands_of_skills_of_a_name_are_not_all_compared_with_each_other() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3_000, 1, D)).astype(np.float32)
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    groups = [
        Group(skill_id=number, vectors_ND=vectors_ND, is_fixed=True)
        for number, vectors_ND in enumerate(points)
    ]
    tracemalloc.start()
    found = look([*groups, Group(skill_id=3_000, vectors_ND=around(0, 30))])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) >= 3_000
    assert most < 40e6  # the distances of all to all are 72 MB, several times over


@pytest.mark.parametrize("at_once", [AT_ONCE, 100])
def test_kinds_of_three_texts_and_families_of_a_hundred_are_found_side_by_side(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.alike.AT_ONCE", at_once)
    rng = np.random.default_rng(0)
    sizes = [3] * 150 + [100] * 5
    kinds = [
        centre + 0.05 * rng.normal(size=(size, 64))
        for size, centre in zip(sizes, rng.normal(size=(len(sizes), 64)) / 8, strict=True)
    ]
    vectors_ND = np.concatenate(kinds)
    pen_ND = (vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)).astype(np.float32)
    found = regroup([], pen_ND, min_size=2)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    kinds_of = [{int(labels[row]) for _, row in one.members} for one in found]
    assert all(len(kind) == 1 for kind in kinds_of)
    assert sorted(len(one.members) for one in found) == sizes


def test_looking_again_changes_nothing() -> None:
    mixed = np.concatenate([around(axis, 25, spread=0.15) for axis in range(5)])
    order = np.random.default_rng(0).permutation(len(mixed))
    first = look([Group(skill_id=1, vectors_ND=mixed[order[:100]])], mixed[order[100:]])
    # Its 100 texts of five kinds are five skills, each with its share of those that waited.
    assert sorted(len(one.members) for one in first) == [25] * 5
    vectors = {1: mixed[order[:100]], None: mixed[order[100:]]}
    settled = [
        Group(skill_id=n, vectors_ND=np.stack([vectors[skill][row] for skill, row in one.members]))
        for n, one in enumerate(first)
    ]
    again = look(settled)
    assert {one.skill_id: len(one.members) for one in again} == dict.fromkeys(range(5), 25)
    assert all(not one.absorbs for one in again)


def test_text_of_a_skill_that_is_like_no_other_is_a_stray_there() -> None:
    groups = [
        Group(skill_id=1, vectors_ND=np.concatenate([around(0, 30), around(2, 1)])),
        Group(skill_id=2, vectors_ND=around(1, 30)),
    ]
    first, second = look(groups)
    assert ([*first.strays], [*second.strays]) == ([(1, 30)], [])
    assert sorted(first.members) == [(1, row) for row in range(31)]


def test_skill_that_goes_to_several_goes_on_as_the_part_that_no_other_skill_is() -> None:
    groups = [
        Group(skill_id=1, vectors_ND=np.concatenate([around(0, 30, seed=1), around(1, 20)])),
        Group(skill_id=2, vectors_ND=around(0, 40)),
    ]
    first, second = look(groups)
    assert sorted(first.members) == [(1, row) for row in range(30, 50)]
    assert {(1, row) for row in range(30)} <= {*second.members}
    assert (second.skill_id, second.absorbs) == (2, ())


@given(st.permutations(range(40)), st.integers(0, 40), st.integers(0, 40))
def test_what_is_of_one_kind_does_not_depend_on_the_skills_it_came_under(
    order: list[int], first: int, second: int
) -> None:
    vectors_ND = np.concatenate([around(axis, 10) for axis in range(4)])
    ends = sorted((first, second))
    rows = [order[: ends[0]], order[ends[0] : ends[1]], order[ends[1] :]]
    groups = [Group(skill_id=n, vectors_ND=vectors_ND[rows[n]]) for n in range(2)]
    found = look(groups, vectors_ND[rows[2]])
    kinds = [
        sorted(rows[2 if skill is None else skill][row] for skill, row in one.members)
        for one in found
        if one.members
    ]
    assert sorted(kinds) == [list(range(n, n + 10)) for n in range(0, 40, 10)]


def test_stray_of_a_skill_that_is_absorbed_is_a_stray_of_the_one_that_absorbs_it() -> None:
    lonely = around(2, 1)
    groups = [
        Group(skill_id=3, vectors_ND=np.concatenate([around(0, 10), lonely])),
        Group(skill_id=9, vectors_ND=around(0, 30, seed=1)),
    ]
    [one] = look(groups)
    assert (one.skill_id, one.absorbs, [*one.strays]) == (9, (3,), [(3, 10)])


@given(st.lists(st.integers(0, 5), min_size=60, max_size=60), st.integers(0, 20))
def test_kinds_that_run_into_each_other_are_found_alike_however_they_came(
    came_under: list[int], seed: int
) -> None:
    # Twelve centres in eight dimensions: what goes together is often close.
    rng = np.random.default_rng(seed)
    near_ND = rng.normal(size=(12, 8))[rng.integers(0, 12, size=60)] + rng.normal(size=(60, 8)) / 2
    unit_ND = near_ND / np.linalg.norm(near_ND, axis=1, keepdims=True)
    vectors_ND = np.asarray(unit_ND, dtype=np.float32)
    rows = [[row for row in range(60) if came_under[row] == n] for n in range(6)]
    groups = [Group(skill_id=n, vectors_ND=vectors_ND[rows[n]]) for n in range(5) if rows[n]]

    def kinds(found: list[Regrouped], rows: dict[int | None, list[int]]) -> list[list[int]]:
        texts = [
            sorted(rows[skill][row] for skill, row in {*one.members} - {*one.strays})
            for one in found
        ]
        return sorted(one for one in texts if len(one) > 1)

    at_once = kinds(regroup([], vectors_ND, min_size=2), {None: list(range(60))})
    came = regroup(groups, vectors_ND[rows[5]], min_size=2)
    assert kinds(came, dict(enumerate(rows[:5])) | {None: rows[5]}) == at_once


@pytest.mark.parametrize("num", [10, 100, 1_000])
def test_one_kind_stays_one_skill_however_large(num: int) -> None:
    assert len(look([Group(skill_id=1, vectors_ND=around(0, num, spread=0.15))])) == 1


POINT = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=3, max_size=3).filter(any)
POINTS = st.lists(POINT, max_size=20)


@given(st.lists(st.tuples(POINTS.filter(bool), st.booleans()), max_size=4), POINTS)
def test_each_text_is_in_one_group_and_each_skill_goes_somewhere(
    skills: list[tuple[list[list[float]], bool]], pen: list[list[float]]
) -> None:
    def unit(points: list[list[float]]) -> NDArray[np.float32]:
        vectors = np.array(points, dtype=np.float32).reshape(-1, 3)
        unit_ND = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(unit_ND, dtype=np.float32)

    groups = [
        Group(skill_id=n, vectors_ND=unit(points), is_fixed=is_fixed)
        for n, (points, is_fixed) in enumerate(skills)
    ]
    found = look(groups, unit(pen))
    members = [member for one in found for member in one.members]
    assert len(members) == len(set(members))
    assert {m for m in members if m[0] is not None} == {
        (group.skill_id, row) for group in groups for row in range(len(group.vectors_ND))
    }
    ids = [one.skill_id for one in found if one.skill_id is not None]
    ids += [id for one in found for id in one.absorbs]
    assert sorted(ids) == list(range(len(groups)))
    for one in found:
        assert {*one.strays} <= {*one.members}
        for was, _ in one.strays:
            assert was in {one.skill_id, *one.absorbs}
            assert was is not None and not groups[was].is_fixed
    for group in groups:
        if group.is_fixed:
            [home] = [one for one in found if one.skill_id == group.skill_id]
            rows = {row for skill, row in home.members if skill == group.skill_id}
            assert rows == set(range(len(group.vectors_ND)))
