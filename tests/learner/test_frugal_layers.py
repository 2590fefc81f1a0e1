import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from learner.frugal_layers import Norm, normed_gated_unit, normed_linears, rms_norm, rotate
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


def norm_of(weight: Tensor, eps: float = 1e-5) -> Norm:
    return Norm(weight_D=weight, eps=eps)


def textbook_unit(x: Tensor, gate: Lora, up: Lora, down: Lora) -> Tensor:
    return lora_linear(silu(lora_linear(x, gate)) * lora_linear(x, up), down)


def textbook_norm(x: Tensor, weight: Tensor) -> Tensor:
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)
    return weight * (x.float() * scale).to(x.dtype)


def test_norm_of_three_and_four_by_hand() -> None:
    # mean square (9 + 16) / 2 = 12.5; weights 1 and 2
    found = rms_norm(torch.tensor([3.0, 4.0]), norm_of(torch.tensor([1.0, 2.0]), 0.0))
    torch.testing.assert_close(found, torch.tensor([3.0, 8.0]) / 12.5**0.5)


def test_quarter_turn_by_hand() -> None:
    # units 1 and 3 are a pair, 2 and 4 one that stays
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 1, 4)
    cos, sin = torch.tensor([[0.0, 1.0, 0.0, 1.0]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]])
    assert rotate(x, cos, sin).flatten().tolist() == [-3.0, 2.0, 1.0, 4.0]


def test_rotation_is_that_of_transformers_in_the_order_that_attention_reads() -> None:
    x, angles = tensors((5, 2, 3, 8), (5, 4))
    cos, sin = (torch.cat([f, f], 1) for f in (angles.cos(), angles.sin()))
    expected, _ = apply_rotary_pos_emb(x.permute(1, 2, 0, 3), x.permute(1, 2, 0, 3), cos, sin, 0)
    found = rotate(x, cos, sin)
    assert found.is_contiguous()
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_norm_gradcheck() -> None:
    x, weight = tensors((2, 3, 5), (5,))
    norm = norm_of(weight)
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, norm), (x.requires_grad_(),))


def test_rotation_gradcheck() -> None:
    x, angles = tensors((3, 2, 1, 4), (3, 2))
    cos, sin = (torch.cat([f, f], 1) for f in (angles.cos(), angles.sin()))
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (x.requires_grad_(),))


def test_gated_unit_gradcheck() -> None:
    x, weight, *others = tensors((3, 4), (4,), *ADAPTERS, *WEIGHTS)
    leaves = [tensor.requires_grad_() for tensor in (x, *others[:6])]
    assert torch.autograd.gradcheck(
        lambda x, *adapters: normed_gated_unit(
            x, norm_of(weight), *layers(list(adapters), others[6:])
        ),
        leaves,
    )


def test_linears_gradcheck() -> None:
    x, weight, *others = tensors((3, 4), (4,), *ADAPTERS[:4], *WEIGHTS[:2])
    leaves = [tensor.requires_grad_() for tensor in (x, *others[:4])]
    assert torch.autograd.gradcheck(
        lambda x, *adapters: normed_linears(x, norm_of(weight), layers(list(adapters), others[4:])),
        leaves,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_give_the_textbooks_numbers_and_gradients(dtype: torch.dtype) -> None:
    x, weight, *others = tensors((3, 4), (4,), *ADAPTERS, *WEIGHTS, dtype=torch.float32)
    x, weight = x.to(dtype).requires_grad_(), weight.to(dtype)
    adapters = [tensor.requires_grad_() for tensor in others[:6]]
    unit = layers(adapters, [tensor.to(dtype) for tensor in others[6:]])
    mine = normed_gated_unit(x, norm_of(weight), *unit)
    theirs = textbook_unit(textbook_norm(x, weight), *unit)
    assert mine.dtype is dtype
    torch.testing.assert_close(mine, theirs)
    found = torch.autograd.grad(mine.float().square().sum(), (x, *adapters))
    expected = torch.autograd.grad(theirs.float().square().sum(), (x, *adapters))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype is other.dtype
        tolerance = 1e-5 if dtype is torch.float32 else 0.02
        assert (one - other).float().norm() / other.float().norm() < tolerance
