import pytest
import torch

from learner.exponential import exp_of_difference_


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_it_is_torchs_exp(dtype: torch.dtype, rtol: float) -> None:
    x = torch.linspace(-40, 20, 100, dtype=dtype).view(4, 25)
    by = torch.tensor([[20.0], [0.0], [-3.5], [7.0]], dtype=dtype)
    expected = (x - by).exp()
    torch.testing.assert_close(exp_of_difference_(x, by), expected, rtol=rtol, atol=0.0)


def test_it_replaces_its_input() -> None:
    x = torch.zeros(2, 3)
    assert exp_of_difference_(x, torch.zeros(2, 1)) is x
    assert x.tolist() == [[1.0] * 3] * 2


def test_what_is_hidden_or_far_below_is_zero() -> None:
    x = torch.tensor([[-torch.inf, 0.0, -1000.0], [-torch.inf, 5.0, 6.0]])
    by = torch.tensor([[0.0], [torch.inf]])
    assert exp_of_difference_(x, by).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
