import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memory.alike import AT_ONCE, LEAST_PART, alike


def unit(vectors_ND: NDArray[np.float64]) -> NDArray[np.float32]:
    unit_ND = vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    return np.asarray(unit_ND, dtype=np.float32)


def kinds(sizes: list[int], *, dimension: int = 32, spread: float = 0.05) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(len(sizes), dimension)) / np.sqrt(dimension)
    noise = spread * rng.normal(size=(sum(sizes), dimension))
    return unit(np.repeat(centres, sizes, axis=0) + noise)


def test_gatherings_join_while_their_mean_cosine_is_enough() -> None:
    # Cosines to the first: 0.8 and 0; of the other two: 0.6. The first two join, and their mean
    # cosine to the third is 0.3.
    vectors_ND = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]], dtype=np.float32)
    rows = np.arange(3)
    assert [one.tolist() for one in alike(vectors_ND, rows, 0.5)] == [[0, 1], [2]]
    assert [one.tolist() for one in alike(vectors_ND, rows, 0.29)] == [[0, 1, 2]]
    assert [one.tolist() for one in alike(vectors_ND, rows[1:], 0.5)] == [[1, 2]]
    assert alike(vectors_ND, rows[:0], 0.5) == []


@given(st.integers(LEAST_PART, 60), st.integers(0, 99))
def test_each_text_is_gathered_once_in_blocks_too(at_once: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Some are the same text, and the rest of any direction.
    vectors_ND = unit(rng.normal(size=(80, 3))[rng.integers(0, 80, size=80)])
    rows = np.flatnonzero(rng.random(80) < 0.9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memory.alike.AT_ONCE", at_once)
        found = alike(vectors_ND, rows, 0.5)
    assert sorted(np.concatenate(found).tolist()) == rows.tolist()
    assert all(len(one) <= at_once for one in found)


def test_no_kinds_are_mixed_and_few_cut_through_when_texts_are_too_many_for_one_block() -> None:
    sizes = [40] * 150
    vectors_ND = kinds(sizes, dimension=128)
    assert len(vectors_ND) > 2 * AT_ONCE
    found = alike(vectors_ND, np.arange(len(vectors_ND)), 0.5)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    assert all(len({*labels[one].tolist()}) == 1 for one in found)
    assert len(found) < 2 * len(sizes)  # a kind of which two lose a text each is three


def test_memory_grows_with_the_texts_and_not_with_their_pairs() -> None:
    vectors_ND = kinds([2] * 4_000, dimension=16)
    tracemalloc.start()
    alike(vectors_ND, np.arange(len(vectors_ND)), 0.5)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 90e6  # all pairs are 256 MB, twice


def test_one_text_thousands_of_times_is_halved_like_any_others() -> None:
    num = 3 * AT_ONCE
    vectors_ND = np.repeat(kinds([1]), num, axis=0)
    found = alike(vectors_ND, np.arange(num), 0.5)
    assert sum(map(len, found)) == num
    assert all(AT_ONCE / LEAST_PART < len(one) <= AT_ONCE for one in found)
