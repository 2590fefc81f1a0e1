from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner import forest_layout, forests, tree_attention
from learner.errors import TrainingError
from learner.forest_layout import Rectangle, layout
from learner.forests import Forest, plant
from learner.tree_attention import forest_attention

CPU = torch.device("cpu")
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=12)
rows_lists = st.lists(tokens, min_size=1, max_size=8)


def masked_reference(q: Tensor, k: Tensor, v: Tensor, forest: Forest) -> Tensor:
    """Attention by a dense mask that is read off the rows' paths, not off the segments."""
    mask = torch.zeros(q.shape[1], q.shape[1], dtype=torch.bool)
    for path in forest.paths:
        for depth, place in enumerate(path):
            mask[place, list(path[: depth + 1])] = True
    scores = torch.einsum("ktrd,ksd->ktrs", q, k)
    weights = scores.masked_fill(~mask[None, :, None], -torch.inf).softmax(-1)
    return torch.einsum("ktrs,ksd->tkrd", weights, v)


def inputs(num_tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    shapes = [(2, num_tokens, 3, 4), (2, num_tokens, 4), (2, num_tokens, 4)]
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def assert_within(rectangles: Sequence[Rectangle], most: tuple[int, int]) -> None:
    for one in rectangles:
        sizes = [span.stop - span.start for span in (one.keys, one.queries)]
        assert min(sizes) > 0
        assert sizes[0] <= most[0]
        assert sizes[1] <= most[1]


@settings(max_examples=50, deadline=None)
@given(
    rows=rows_lists,
    min_shared=st.integers(1, 4),
    max_segment=st.integers(1, 6),
    longest_context=st.integers(0, 10),
    max_rectangle=st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
def test_output_and_gradients_are_those_of_a_dense_mask(
    rows: list[list[int]],
    min_shared: int,
    max_segment: int,
    longest_context: int,
    max_rectangle: tuple[int, int],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "MIN_SHARED", min_shared)
        patch.setattr(forests, "MAX_SEGMENT", max_segment)
        patch.setattr(forest_layout, "SHORTEST_SQUARE", 2)
        patch.setattr(forest_layout, "LONGEST_CONTEXT", longest_context)
        patch.setattr(forest_layout, "MAX_KEYS", max_rectangle[0])
        patch.setattr(forest_layout, "MAX_QUERIES", max_rectangle[1])
        forest = plant(rows)
        plan = layout(forest.segments, CPU)
    assert_within(plan.rectangles, max_rectangle)
    q, k, v = inputs(len(forest.token_ids))
    found = forest_attention(q, k, v, plan)
    expected = masked_reference(q, k, v, forest)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(0)).double()
    for mine, theirs in zip(
        torch.autograd.grad((found * weights).sum(), (q, k, v)),
        torch.autograd.grad((expected * weights).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("longest_context", [0, 2])
def test_gradcheck(longest_context: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forests, "MIN_SHARED", 2)
        patch.setattr(forest_layout, "LONGEST_CONTEXT", longest_context)
        forest = plant([[1, 2, 3], [1, 2, 4, 5], [6]])
        plan = layout(forest.segments, CPU)
    assert bool(plan.rectangles) is (longest_context == 0)
    q, k, v = inputs(len(forest.token_ids))
    assert torch.autograd.gradcheck(lambda q, k, v: forest_attention(q, k, v, plan), (q, k, v))


def test_a_long_beginning_is_read_in_wide_rectangles() -> None:
    """Tokens of a later part of a chain read all before it at once, and answers the whole chain."""
    prompt = list(range(300))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forest_layout, "MAX_QUERIES", 40)
        forest = plant([[*prompt, 7, *range(19)], [*prompt, 8, *range(29)]])
        plan = layout(forest.segments, CPU)
    found = {
        (one.keys.start, one.keys.stop, one.queries.start, one.queries.stop)
        for one in plan.rectangles
    }
    in_chain = {(0, 128, a, a + 32) for a in (128, 160, 192, 224)} | {
        (0, 256, 256, 278),
        (0, 256, 278, 300),
    }
    assert found == in_chain | {(0, 300, 300, 325), (0, 300, 325, 350)}


def test_scores_far_apart_stay_finite() -> None:
    forest = plant([list(range(200))])
    q, k, v = (x.detach() * 100 for x in inputs(200))
    out = forest_attention(q, k, v, layout(forest.segments, CPU))
    torch.testing.assert_close(out, masked_reference(q, k, v, forest))


def test_a_model_with_a_sliding_window_is_refused() -> None:
    plan = layout(plant([[1, 2]]).segments, CPU)
    x = torch.zeros(1, 2, 2, 4)
    with pytest.raises(TrainingError, match="not plain causal attention"):
        tree_attention._for_transformers(
            torch.nn.Identity(), x, x, x, None, forest=plan, sliding_window=4
        )
