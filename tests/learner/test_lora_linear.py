import torch
from torch import Tensor

from learner.lora_linear import Lora, lora_linear


def apply(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    return lora_linear(x, Lora(weight_OI=weight, bias_O=bias, a_RI=a, b_OR=b, scale=0.5))


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 3, 5), (4, 5), (4,), (2, 5), (4, 2)]
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def test_output_is_the_layers_with_the_scaled_low_rank_product_added() -> None:
    x, weight, bias, a, b = inputs()
    found = apply(x, weight, bias, a, b)
    torch.testing.assert_close(found, x @ weight.T + bias + 0.5 * (x @ a.T) @ b.T)


def test_gradcheck() -> None:
    x, weight, bias, a, b = inputs()
    leaves = [tensor.requires_grad_() for tensor in (x, a, b)]
    assert torch.autograd.gradcheck(lambda x, a, b: apply(x, weight, bias, a, b), leaves)


def test_float32_adapter_of_a_bfloat16_layer_gets_float32_gradients() -> None:
    x, weight, _, a, b = inputs(torch.float32)
    precise = [tensor.clone().requires_grad_() for tensor in (x, a, b)]
    rounded = [x.bfloat16().requires_grad_(), *(t.clone().requires_grad_() for t in (a, b))]
    exact = apply(precise[0], weight, None, *precise[1:])
    found = apply(rounded[0], weight.bfloat16(), None, *rounded[1:])
    assert found.dtype is torch.bfloat16
    exact.square().sum().backward()
    found.float().square().sum().backward()
    for mine, theirs in zip(rounded, precise, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert mine.grad.dtype is mine.dtype
        error = (mine.grad.float() - theirs.grad).norm() / theirs.grad.norm()
        assert error < 0.02
