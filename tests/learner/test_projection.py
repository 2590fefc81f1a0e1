import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner import projection
from learner.projection import token_logprobs


def inputs(num_states: int = 5, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(num_states, 4, generator=generator, dtype=dtype).requires_grad_()
    return hidden, torch.randn(7, 4, generator=generator, dtype=dtype)


@settings(deadline=None)
@given(
    wanted=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=12),
    chunk_states=st.integers(1, 6),
)
def test_logprobs_and_gradients_are_those_of_log_softmax(
    wanted: list[tuple[int, int]], chunk_states: int
) -> None:
    hidden, weight = inputs()
    state = torch.tensor([s for s, _ in wanted], dtype=torch.int64)
    target = torch.tensor([t for _, t in wanted], dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projection, "CHUNK_LOGITS", 7 * chunk_states)
        found = token_logprobs(hidden, weight, state, target)
    expected = (hidden @ weight.T).log_softmax(-1)[state, target]
    torch.testing.assert_close(found, expected)
    weights = torch.arange(len(wanted), dtype=torch.float64) - 2.5
    (mine,) = torch.autograd.grad((found * weights).sum(), hidden)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), hidden)
    torch.testing.assert_close(mine, theirs)


def test_gradcheck() -> None:
    hidden, weight = inputs()
    state, target = torch.tensor([0, 0, 3, 4]), torch.tensor([1, 6, 0, 0])
    assert torch.autograd.gradcheck(lambda x: token_logprobs(x, weight, state, target), (hidden,))


def test_without_a_gradient_nothing_is_kept() -> None:
    hidden, weight = inputs()
    with torch.no_grad():
        logprobs = token_logprobs(hidden, weight, torch.tensor([1]), torch.tensor([2]))
    assert not logprobs.requires_grad


def test_bfloat16_is_normalized_in_float32() -> None:
    hidden, weight = inputs(dtype=torch.bfloat16)
    found = token_logprobs(hidden, weight, torch.tensor([0, 2]), torch.tensor([1, 5]))
    expected = (hidden @ weight.T).float().log_softmax(-1)[[0, 2], [1, 5]]
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected)
