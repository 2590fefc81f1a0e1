"""What stands between a block's matrix products, computing the same and keeping less of it.

Autograd keeps the operands of each operation until the backward pass: of a normalization a float32
copy of its input and its output, of a gated unit its activation and product beside what both come
from, of a rotation three tensors. Here a layer keeps what it reads and what the matrix products
gave, and computes the rest again on the way back, a pass over memory without arithmetic to speak
of. Counted on the packaged model, a layer keeps 11.8 KB of a token.

Axes: ``T`` tokens, ``D`` hidden units, ``K`` key heads, ``R`` query heads that share one, ``E``
units of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from learner.lora_linear import Fan, Lora, adapters


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """``x / sqrt(mean(x^2) + eps) * weight`` (arXiv:1910.07467); the weight is frozen.

    The mean and the division are float32 (float64 for float64 inputs), the rest is in x's type, as
    in transformers.
    """

    weight_D: Tensor
    eps: float

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [..., D], and what x is multiplied by [..., 1]."""
        precise_x = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = precise_x.square().mean(-1, keepdim=True).add_(self.eps).rsqrt_()
        return (precise_x * scale).to(x.dtype) * self.weight_D, scale

    def again(self, x: Tensor, scale: Tensor) -> Tensor:
        """Return the output once more."""
        return (x * scale).to(x.dtype) * self.weight_D

    def backward(self, x: Tensor, scale: Tensor, d_out: Tensor) -> Tensor:
        """Return the gradient of x."""
        normal = x * scale
        d_normal = (d_out * self.weight_D).to(scale.dtype)
        along = (d_normal * normal).mean(-1, keepdim=True)
        return normal.mul_(-along).add_(d_normal).mul_(scale).to(x.dtype)


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """Return x normalized; only x gets a gradient."""
    out: Tensor = _RmsNorm.apply(x, norm)  # type: ignore[no-untyped-call]
    return out


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Norm) -> Tensor:
        out, scale = norm.forward(x)
        ctx.save_for_backward(x, scale)
        ctx.norm = norm
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None]:
        x, scale = ctx.saved_tensors
        return ctx.norm.backward(x, scale, d_out), None


def normed_linears(x_TD: Tensor, norm: Norm, layers: Sequence[Lora]) -> tuple[Tensor, ...]:
    """Return the output [T, O] of each layer for x normalized; x and the adapters get gradients."""
    outs: tuple[Tensor, ...] = _NormedLinears.apply(x_TD, *adapters(layers), norm, layers)  # type: ignore[no-untyped-call]
    return outs


class _NormedLinears(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *given: Any) -> tuple[Tensor, ...]:
        *_, norm, layers = given
        fan = Fan(layers, x_TD.dtype)
        normal_TD, scale_T1 = norm.forward(x_TD)
        outs, low_TS = fan.forward(normal_TD)
        ctx.save_for_backward(x_TD, scale_T1, low_TS)
        ctx.norm, ctx.fan = norm, fan
        return tuple(outs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, scale_T1, low_TS = ctx.saved_tensors
        norm: Norm = ctx.norm
        fan: Fan = ctx.fan
        grads, d_low = fan.weight_gradients(norm.again(x_TD, scale_T1), low_TS, d_outs)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = norm.backward(x_TD, scale_T1, fan.input_gradient(d_outs, d_low))
        return d_x, *grads, None, None


def normed_gated_unit(x_TD: Tensor, norm: Norm, gate: Lora, up: Lora, down: Lora) -> Tensor:
    """Return ``down(silu(gate(n)) * up(n))`` (SwiGLU, arXiv:2002.05202) of n, x normalized.

    x [T, D] and the three adapters get gradients.
    """
    layers = (gate, up, down)
    out: Tensor = _NormedGatedUnit.apply(x_TD, *adapters(layers), norm, layers)  # type: ignore[no-untyped-call]
    return out


class _NormedGatedUnit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TD: Tensor, *given: Any) -> Tensor:
        *_, norm, (*pair, last) = given
        into, down = Fan(pair, x_TD.dtype), Fan([last], x_TD.dtype)
        normal_TD, scale_T1 = norm.forward(x_TD)
        (gate_out, up_out), low_TS = into.forward(normal_TD)
        [out_TD], down_low_TR = down.forward(silu(gate_out).mul_(up_out))
        ctx.save_for_backward(x_TD, scale_T1, gate_out, up_out, low_TS, down_low_TR)
        ctx.norm, ctx.into, ctx.down = norm, into, down
        return out_TD

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out_TD: Tensor) -> tuple[Tensor | None, ...]:
        x_TD, scale_T1, gate_out, up_out, low_TS, down_low_TR = ctx.saved_tensors
        norm, into, down = ctx.norm, ctx.into, ctx.down
        active = silu(gate_out)
        d_down, d_low = down.weight_gradients(active * up_out, down_low_TR, [d_out_TD])
        d_product = down.input_gradient([d_out_TD], d_low)
        d_up_out = active.mul_(d_product)
        d_gate_out = torch.ops.aten.silu_backward(d_product.mul_(up_out), gate_out)
        d_outs = [d_gate_out, d_up_out]
        d_into, d_low = into.weight_gradients(norm.again(x_TD, scale_T1), low_TS, d_outs)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_x = norm.backward(x_TD, scale_T1, into.input_gradient(d_outs, d_low))
        return d_x, *d_into, *d_down, None, None


def rotate(x_TKRE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    """Turn each head's units in pairs by a token's place (RoPE, arXiv:2104.09864).

    A unit of the first half is paired with the one as far into the second half.

    Args:
        x_TKRE: heads.
        cos_TE: of the angles, the two halves alike.
        sin_TE: of the angles, likewise.

    Returns:
        [K, T, R, E], contiguous: what attention reads.
    """
    out: Tensor = _Rotation.apply(x_TKRE, cos_TE, sin_TE)  # type: ignore[no-untyped-call]
    return out


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TKRE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
        ctx.save_for_backward(cos_TE, sin_TE)
        T, K, R, E = x_TKRE.shape
        out_KTRE = x_TKRE.new_empty(K, T, R, E)
        _rotate(x_TKRE, out_KTRE.transpose(0, 1), cos_TE, sin_TE)
        return out_KTRE

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out_KTRE: Tensor) -> tuple[Tensor, None, None]:
        cos_TE, sin_TE = ctx.saved_tensors
        K, T, R, E = d_out_KTRE.shape
        d_x_TKRE = d_out_KTRE.new_empty(T, K, R, E)
        _rotate(d_out_KTRE.transpose(0, 1), d_x_TKRE, cos_TE, -sin_TE)
        return d_x_TKRE, None, None


def _rotate(x_TKRE: Tensor, out_TKRE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> None:
    half = cos_TE.shape[1] // 2
    cos, sin = cos_TE[:, None, None], sin_TE[:, None, None, :half]
    torch.mul(x_TKRE, cos, out=out_TKRE)
    out_TKRE[..., :half].addcmul_(x_TKRE[..., half:], sin, value=-1)
    out_TKRE[..., half:].addcmul_(x_TKRE[..., :half], sin)
