"""What stands between a block's matrix products, computing the same and keeping less of it.

Autograd keeps the operands of each operation until the backward pass: of a normalization a float32
copy of its input, of a gated unit its activation and product beside what both come from. Here a
layer keeps what the matrix products gave and computes the rest again on the way back, a pass over
memory without arithmetic to speak of. Counted on the packaged model, a layer keeps 14.1 KB of a
token.

Axes: ``T`` tokens, ``D`` hidden units, ``R`` rank.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from learner.lora_linear import Lora


def rms_norm(x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` (arXiv:1910.07467); only x gets a gradient.

    The mean and the division are float32 (float64 for float64 inputs), the rest is in x's type, as
    in transformers.
    """
    out: Tensor = _RmsNorm.apply(x, weight_D, eps)  # type: ignore[no-untyped-call]
    return out


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, eps: float) -> Tensor:
        precise_x = x.to(_precise(x))
        scale = precise_x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight_D, scale)
        return (precise_x * scale).to(x.dtype) * weight_D

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        x, weight_D, scale = ctx.saved_tensors
        normal = x.to(scale.dtype) * scale
        d_normal = (d_out * weight_D).to(scale.dtype)
        along = (d_normal * normal).mean(-1, keepdim=True)
        return normal.mul_(-along).add_(d_normal).mul_(scale).to(x.dtype), None, None


def gated_unit(x: Tensor, gate: Lora, up: Lora, down: Lora) -> Tensor:
    """Return ``down(silu(gate(x)) * up(x))`` (SwiGLU, arXiv:2002.05202) of [..., D].

    x and the three adapters get gradients.
    """
    adapters = [weight for layer in (gate, up, down) for weight in (layer.a_RI, layer.b_OR)]
    out: Tensor = _GatedUnit.apply(x.flatten(0, -2), *adapters, (gate, up, down))  # type: ignore[no-untyped-call]
    return out.view(x.shape)


class _GatedUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> Tensor:
        *adapters, layers = given
        rounded: list[Lora] = [layer.rounded(x.dtype) for layer in layers]
        gate, up, down = rounded
        gate_out, gate_low = gate.forward(x)
        up_out, up_low = up.forward(x)
        out, down_low = down.forward(silu(gate_out).mul_(up_out))
        ctx.save_for_backward(x, gate_out, up_out, gate_low, up_low, down_low)
        ctx.layers, ctx.adapter_dtype = rounded, adapters[0].dtype
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, gate_out, up_out, gate_low, up_low, down_low = ctx.saved_tensors
        (gate, up, down), dtype = ctx.layers, ctx.adapter_dtype
        active = silu(gate_out)
        *d_down, d_low = down.weight_gradients(active * up_out, down_low, d_out, dtype)
        d_product = down.input_gradient(d_out, d_low)
        d_up_out = active.mul_(d_product)
        d_gate_out = torch.ops.aten.silu_backward(d_product.mul_(up_out), gate_out)
        *d_gate, d_gate_low = gate.weight_gradients(x, gate_low, d_gate_out, dtype)
        *d_up, d_up_low = up.weight_gradients(x, up_low, d_up_out, dtype)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = gate.input_gradient(d_gate_out, d_gate_low)
            d_x += up.input_gradient(d_up_out, d_up_low)
        return d_x, *d_gate, *d_up, *d_down, None


def _precise(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
