import io
import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from memory.index import CompactIndex, Neighbour, VectorIndex, VectorIndexError

DIMENSION = 4


def vector(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


X = vector(1, 0, 0, 0)
Y = vector(0, 1, 0, 0)


def index_of(*vectors: NDArray[np.float32]) -> VectorIndex:
    index = VectorIndex(DIMENSION)
    for id, vector_D in enumerate(vectors, start=1):
        index.add(id, vector_D)
    return index


def test_nearest_comes_first_with_its_cosine_whatever_the_lengths() -> None:
    # cos((3, 4), (1, 0)) = 3 / 5; cos((3, 4), (0, 1)) = 4 / 5.
    found = index_of(100 * X, 0.01 * Y).search(vector(3, 4, 0, 0), limit=5)
    assert [neighbour.id for neighbour in found] == [2, 1]
    assert [round(neighbour.similarity, 6) for neighbour in found] == [0.8, 0.6]


def test_limit_bounds_the_result() -> None:
    index = index_of(X, Y)
    assert len(index.search(X, limit=1)) == 1
    assert index.search(X, limit=0) == []


def test_empty_index_finds_nothing() -> None:
    assert VectorIndex(DIMENSION).search(X, limit=3) == []


def test_adding_an_id_again_replaces_its_vector() -> None:
    index = index_of(X)
    index.add(1, Y)
    assert len(index) == 1
    assert index.search(Y, limit=2) == [Neighbour(id=1, similarity=1.0)]
    assert index.search(X, limit=2) == [Neighbour(id=1, similarity=0.0)]


def test_removed_id_is_not_found_and_removing_twice_says_so() -> None:
    index = index_of(X, Y)
    assert index.remove(1)
    assert not index.remove(1)
    assert 1 not in index
    assert [neighbour.id for neighbour in index.search(X, limit=2)] == [2]


BAD = [
    pytest.param(vector(1, 0, 0), "shape", id="short"),
    pytest.param(vector(1, 0, 0, 0, 0), "shape", id="long"),
    pytest.param(np.ones((1, 4), dtype=np.float32), "shape", id="matrix"),
    pytest.param(vector(), "shape", id="empty"),
    pytest.param(vector(1, np.nan, 0, 0), "NaN", id="nan"),
    pytest.param(vector(1, np.inf, 0, 0), "NaN or infinity", id="inf"),
    pytest.param(vector(0, 0, 0, 0), "zero", id="zero"),
]


@pytest.mark.parametrize(("bad", "says"), BAD)
def test_bad_vector_is_refused_and_changes_nothing(bad: NDArray[np.float32], says: str) -> None:
    index = index_of(X, Y)
    before = index.search(X, limit=9)
    with pytest.raises(VectorIndexError, match=says):
        index.add(1, bad)
    with pytest.raises(VectorIndexError, match=says):
        index.search(bad, limit=1)
    assert index.search(X, limit=9) == before


@pytest.mark.parametrize("scale", [1e-38, 1e38])
def test_tiny_and_huge_vectors_keep_their_direction(scale: float) -> None:
    index = index_of(scale * X, scale * Y)
    assert index.search(scale * X, limit=1) == [Neighbour(id=1, similarity=1.0)]


ENTRY = st.floats(-10, 10, width=32)
VECTOR = (
    st.lists(ENTRY, min_size=DIMENSION, max_size=DIMENSION)
    .map(lambda values: vector(*values))
    .filter(lambda v: float(np.linalg.norm(v)) > 1e-3)
)


@given(st.dictionaries(st.integers(0, 20), VECTOR), st.sets(st.integers(0, 20)), VECTOR)
def test_search_agrees_with_plain_numpy_after_adds_and_removes(
    vectors: dict[int, NDArray[np.float32]], removed: set[int], query: NDArray[np.float32]
) -> None:
    index = VectorIndex(DIMENSION)
    for id, vector_D in vectors.items():
        index.add(id, vector_D)
    for id in removed:
        assert index.remove(id) == (id in vectors)
    kept = {id: v for id, v in vectors.items() if id not in removed}
    found = index.search(query, limit=50)
    assert {neighbour.id for neighbour in found} == set(kept)
    for neighbour in found:
        other = kept[neighbour.id].astype(np.float64)
        wanted = float(other @ query / np.linalg.norm(other) / np.linalg.norm(query))
        assert abs(neighbour.similarity - wanted) < 1e-5
    assert all(a.similarity >= b.similarity for a, b in pairwise(found))


def test_readers_never_see_an_id_half_replaced() -> None:
    index = index_of(X, Y)
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not done.is_set():
            seen.append(len(index.search(X, limit=2)))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2_000):
        index.add(1, X if number % 2 else Y)
    done.set()
    reader.join()
    assert seen
    assert set(seen) == {2}


class _SearchedMeanwhile(io.BytesIO):
    """A file; while it is written, another thread searches."""

    def __init__(self, index: VectorIndex) -> None:
        super().__init__()
        self._index = index
        self.num_found: list[int] = []
        self.has_waited = False

    def write(self, chunk: bytes) -> int:  # type: ignore[override]
        def search() -> None:
            self.num_found.append(len(self._index.search(X, limit=2)))

        reader = threading.Thread(target=search, daemon=True)
        reader.start()
        reader.join(0 if self.has_waited else 5)
        self.has_waited |= reader.is_alive()
        return super().write(chunk)


def test_an_index_is_searched_while_it_is_written() -> None:
    vectors_ND = np.random.default_rng(7).normal(size=(80, DIMENSION)).astype(np.float32)
    index = CompactIndex.train(vectors_ND, 80)
    index.add_all(np.arange(80), vectors_ND)
    file = _SearchedMeanwhile(index)
    index.write(file)
    assert not file.has_waited
    assert set(file.num_found) == {2}
    file.seek(0)
    assert CompactIndex.read(file, 80).ids == index.ids
