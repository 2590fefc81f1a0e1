import numpy as np
import pytest
from numpy.typing import NDArray

from memory.gains import Gains
from memory.kinship import SAME_KIND, Means, required
from memory.regroup import Group, Regrouped

D = 16


def around(axis: int, num: int, *, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng([seed, axis])
    vectors_ND = np.eye(D)[axis] + 0.1 * rng.normal(size=(num, D))
    unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(unit_ND, dtype=np.float32)


def between(one_ND: NDArray[np.float32], other_ND: NDArray[np.float32]) -> float:
    return float(Means.of([one_ND, other_ND]).kinship(np.array([0]))[0, 1])


def rows(skill_id: int | None, *numbers: int) -> list[tuple[int | None, int]]:
    return [(skill_id, number) for number in numbers]


def test_text_wins_the_evidence_for_its_new_group_less_that_for_the_rest_of_its_skill() -> None:
    first_ND, second_ND, pen_ND = around(0, 4), around(1, 3), around(1, 2, seed=5)
    first_ND[3] = around(1, 1, seed=9)[0]
    groups = [Group(skill_id=1, vectors_ND=first_ND), Group(skill_id=2, vectors_ND=second_ND)]
    plan = [
        Regrouped(skill_id=1, members=rows(1, 0, 1, 2)),
        Regrouped(skill_id=2, members=[*rows(2, 0, 1, 2), *rows(1, 3), *rows(None, 0, 1)]),
    ]
    gain = Gains(groups, pen_ND, plan, threshold=SAME_KIND).gain(rows(1, 3), rows(1, 3), 1)
    there = between(first_ND[3:], np.concatenate([second_ND, pen_ND]))
    assert gain == pytest.approx(there - between(first_ND[3:], first_ND[:3]), abs=1e-6)
    assert gain > 0


def test_merge_wins_what_speaks_for_it_beyond_the_least_and_a_split_what_is_missing() -> None:
    both_ND = np.concatenate([around(0, 5), around(1, 4)])
    groups = [Group(skill_id=1, vectors_ND=both_ND[:5]), Group(skill_id=2, vectors_ND=both_ND[5:])]
    merged = [
        Regrouped(skill_id=1, absorbs=[2], members=[*rows(1, *range(5)), *rows(2, *range(4))])
    ]
    nothing = np.zeros((0, D), dtype=np.float32)
    lost = Gains(groups, nothing, merged, threshold=SAME_KIND).gain(
        rows(2, *range(4)), rows(2, *range(4)), 0
    )
    split = [
        Regrouped(skill_id=3, members=rows(3, *range(5))),
        Regrouped(skill_id=None, split_from=3, members=rows(3, *range(5, 9))),
    ]
    whole = [Group(skill_id=3, vectors_ND=both_ND)]
    won = Gains(whole, nothing, split, threshold=SAME_KIND).gain(
        rows(3, *range(5, 9)), rows(3, *range(5, 9)), 1
    )
    wanted = between(both_ND[:5], both_ND[5:]) - required(SAME_KIND)
    assert lost == pytest.approx(wanted, abs=1e-6)
    assert won == pytest.approx(-wanted, abs=1e-6)
    assert lost < 0 < won  # they are two kinds


def test_skill_that_becomes_part_of_another_leaves_nobody_behind_though_some_go_elsewhere() -> None:
    groups = [Group(skill_id=n, vectors_ND=around(0, 6, seed=n)) for n in (1, 2, 3)]
    plan = [
        Regrouped(skill_id=1, absorbs=[2], members=[*rows(1, *range(6)), *rows(2, *range(4))]),
        Regrouped(skill_id=3, members=[*rows(3, *range(6)), *rows(2, 4, 5)]),
    ]
    nothing = np.zeros((0, D), dtype=np.float32)
    gain = Gains(groups, nothing, plan, threshold=SAME_KIND).gain(
        rows(2, *range(6)), rows(2, *range(4)), 0
    )
    there = between(groups[1].vectors_ND[:4], groups[0].vectors_ND)
    assert gain == pytest.approx(there - required(SAME_KIND), abs=1e-6)
