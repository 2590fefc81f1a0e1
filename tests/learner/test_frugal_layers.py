import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu

from learner.frugal_layers import gated_unit, rms_norm
from learner.lora_linear import Lora, lora_linear


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def layers(adapters: list[Tensor], weights: list[Tensor]) -> list[Lora]:
    return [
        Lora(weight_OI=weight, bias_O=None, a_RI=a, b_OR=b, scale=0.5)
        for weight, a, b in zip(weights, adapters[::2], adapters[1::2], strict=True)
    ]


ADAPTERS = [(2, 4), (6, 2), (2, 4), (6, 2), (2, 6), (4, 2)]
WEIGHTS = [(6, 4), (6, 4), (4, 6)]


def textbook_unit(x: Tensor, gate: Lora, up: Lora, down: Lora) -> Tensor:
    return lora_linear(silu(lora_linear(x, gate)) * lora_linear(x, up), down)


def textbook_norm(x: Tensor, weight: Tensor) -> Tensor:
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    return weight * (x.float() * scale).to(x.dtype)


def test_norm_of_three_and_four_by_hand() -> None:
    # mean square (9 + 16) / 2 = 12.5; weights 1 and 2
    found = rms_norm(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]), 0.0)
    torch.testing.assert_close(found, torch.tensor([3.0, 8.0]) / 12.5**0.5)


def test_norm_gradcheck() -> None:
    x, weight = tensors((2, 3, 5), (5,))
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, weight, 1e-5), (x.requires_grad_(),))


def test_gated_unit_gradcheck() -> None:
    x, *others = tensors((1, 3, 4), *ADAPTERS, *WEIGHTS)
    leaves = [tensor.requires_grad_() for tensor in (x, *others[:6])]
    assert torch.autograd.gradcheck(
        lambda x, *adapters: gated_unit(x, *layers(list(adapters), others[6:])), leaves
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_give_the_textbooks_numbers_and_gradients(dtype: torch.dtype) -> None:
    x, weight, *others = tensors((1, 3, 4), (4,), *ADAPTERS, *WEIGHTS, dtype=torch.float32)
    x, weight = x.to(dtype).requires_grad_(), weight.to(dtype)
    adapters = [tensor.requires_grad_() for tensor in others[:6]]
    unit = layers(adapters, [tensor.to(dtype) for tensor in others[6:]])
    mine = gated_unit(rms_norm(x, weight, 1e-5), *unit)
    theirs = textbook_unit(textbook_norm(x, weight), *unit)
    assert mine.dtype is dtype
    assert torch.equal(mine, theirs)
    found = torch.autograd.grad(mine.float().square().sum(), (x, *adapters))
    expected = torch.autograd.grad(theirs.float().square().sum(), (x, *adapters))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        tolerance = 1e-5 if dtype is torch.float32 else 0.02
        assert (one - other).float().norm() / other.float().norm() < tolerance
