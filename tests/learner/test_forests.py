import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner import forests
from learner.forests import MAX_SEGMENT, MIN_SHARED, Forest, Segment, pack, plant

PROMPT = tuple(range(100, 100 + MIN_SHARED))
LONG = tuple(range(200, 200 + 3 * MIN_SHARED))


def seen(forest: Forest, place: int) -> list[int]:
    """Return the places that a token attends to, by what the segments say."""
    places = []
    for segment in forest.segments:
        if segment.start <= place < segment.end:
            places += range(segment.start, place + 1)
        elif segment.end <= place < segment.subtree_end:
            places += range(segment.start, segment.end)
    return sorted(places)


def check(rows: list[tuple[int, ...]]) -> Forest:
    """Every token of every row sees exactly its row up to itself, at the right positions."""
    forest = plant(rows)
    for row, path in zip(rows, forest.paths, strict=True):
        assert [forest.token_ids[place] for place in path] == list(row)
        assert [forest.positions[place] for place in path] == list(range(len(row)))
        for depth, place in enumerate(path):
            assert seen(forest, place) == sorted(path[: depth + 1])
    ends = [(segment.start, segment.end) for segment in forest.segments]
    assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == len(forest.token_ids) == len(forest.positions)
    return forest


def test_a_groups_prompt_stands_there_once() -> None:
    rows = [(*PROMPT, 1, 2), (*PROMPT, 3), (*PROMPT, 4, 5, 6)]
    forest = check(rows)
    assert forest.token_ids == (*PROMPT, 1, 2, 3, 4, 5, 6)
    assert forest.positions[MIN_SHARED:] == tuple(MIN_SHARED + i for i in (0, 1, 0, 0, 1, 2))
    n = MIN_SHARED
    assert forest.segments == (
        Segment(start=0, end=n, subtree_end=n + 6),
        Segment(start=n, end=n + 2, subtree_end=n + 2),
        Segment(start=n + 2, end=n + 3, subtree_end=n + 3),
        Segment(start=n + 3, end=n + 6, subtree_end=n + 6),
    )


def test_the_turns_before_a_fork_stand_there_once() -> None:
    forest = check([(*PROMPT, *LONG, 1), (*PROMPT, *LONG, 2), (*PROMPT, 3), (7, 8)])
    assert len(forest.token_ids) == len(PROMPT) + len(LONG) + 3 + 2


def test_equal_rows_and_rows_that_begin_another_take_no_room() -> None:
    forest = check([(*PROMPT, *LONG), (*PROMPT, *LONG), PROMPT])
    assert forest.token_ids == (*PROMPT, *LONG)
    assert forest.paths[0] == forest.paths[1]


def test_a_short_common_beginning_is_not_worth_a_segment() -> None:
    forest = check([(*PROMPT[:-1], 1), (*PROMPT[:-1], 2)])
    assert len(forest.token_ids) == 2 * MIN_SHARED


def test_a_long_segment_is_a_chain() -> None:
    forest = check([tuple(range(MAX_SEGMENT * 2 + 5))])
    assert [s.end - s.start for s in forest.segments] == [MAX_SEGMENT, MAX_SEGMENT, 5]
    assert {s.subtree_end for s in forest.segments} == {MAX_SEGMENT * 2 + 5}


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)
rows_lists = st.lists(tokens, min_size=1, max_size=12)


@given(rows=rows_lists, min_shared=st.integers(1, 6), max_segment=st.integers(1, 8))
def test_every_row_sees_itself_and_nothing_else(
    rows: list[tuple[int, ...]], min_shared: int, max_segment: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "MIN_SHARED", min_shared)
        patch.setattr(forests, "MAX_SEGMENT", max_segment)
        forest = check(rows)
    assert len(forest.token_ids) <= sum(map(len, rows))
    assert max(segment.end - segment.start for segment in forest.segments) <= max_segment


@given(rows=rows_lists)
def test_with_a_threshold_of_one_no_beginning_stands_there_twice(
    rows: list[tuple[int, ...]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "MIN_SHARED", 1)
        forest = plant(rows)
    assert len(forest.token_ids) == len({row[:n] for row in rows for n in range(1, len(row) + 1)})


@given(rows=rows_lists, min_shared=st.integers(1, 6), max_tokens=st.integers(1, 40))
def test_every_row_is_in_one_forest_within_the_budget(
    rows: list[tuple[int, ...]], min_shared: int, max_tokens: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "MIN_SHARED", min_shared)
        parts = pack(rows, max_tokens=max_tokens)
        sizes = [len(plant([rows[i] for i in part]).token_ids) for part in parts]
    assert sorted(i for part in parts for i in part) == list(range(len(rows)))
    for part, size in zip(parts, sizes, strict=True):
        assert size <= max_tokens or len(part) == 1


def test_groups_stay_together_and_the_largest_forest_comes_first() -> None:
    other = tuple(range(300, 300 + MIN_SHARED))
    rows = [(*PROMPT, 1), (*other, 1, 1, 1, 1), (*PROMPT, 2), (*other, 2), (*PROMPT, 3)]
    assert pack(rows, max_tokens=MIN_SHARED + 5) == [[1, 3], [0, 2, 4]]
    assert pack(rows, max_tokens=100) == [[0, 1, 2, 3, 4]]


def test_forests_are_filled_evenly_without_becoming_more() -> None:
    rows = [(i,) * 10 for i in range(10)]
    assert [len(part) for part in pack(rows, max_tokens=80)] == [5, 5]
    uneven = [(1,) * 6, (2,) * 6, (3,) * 4, (4,) * 4, (5,) * 4]
    # spread largest first, these would be 14 and 10
    assert pack(uneven, max_tokens=12) == [[0, 1], [2, 3, 4]]


def test_a_group_beyond_the_budget_is_cut_and_computes_its_prompt_again() -> None:
    rows = [(*PROMPT, i, i) for i in range(5)]
    assert pack(rows, max_tokens=MIN_SHARED + 4) == [[0, 1], [2, 3], [4]]
