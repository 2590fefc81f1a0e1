"""A frozen linear layer with a low-rank adapter on it, as one operation.

peft computes the adapter in float32 beside the layer: every layer's input is copied, its output is
scaled, added and copied back, which costs more memory traffic than arithmetic. Here the adapter's
float32 weights are rounded to the layer's type once a call, as the engine that serves them does,
and their product is added inside the matrix product, whose sums are float32. In float32 the result
is peft's up to rounding.

Axes: ``T`` tokens, ``I`` inputs, ``O`` outputs, ``R`` rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """``x W^T + bias + scale * (x A^T) B^T`` (LoRA, arXiv:2106.09685); W and bias are frozen."""

    weight_OI: Tensor
    bias_O: Tensor | None
    a_RI: Tensor
    b_OR: Tensor
    scale: float  # alpha / rank

    def rounded(self, dtype: torch.dtype) -> "Lora":
        """Return the adapter in the layer's type, with the scale in B."""
        return Lora(
            weight_OI=self.weight_OI,
            bias_O=self.bias_O,
            a_RI=self.a_RI.to(dtype),
            b_OR=(self.b_OR * self.scale).to(dtype),
            scale=self.scale,
        )

    def forward(self, x_TI: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output [T, O] and x A^T [T, R], of a rounded layer."""
        low_TR = x_TI @ self.a_RI.T
        out_TO = linear(x_TI, self.weight_OI, self.bias_O).addmm_(low_TR, self.b_OR.T)
        return out_TO, low_TR

    def weight_gradients(
        self, x_TI: Tensor, low_TR: Tensor, d_out_TO: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of A and B, before rounding and scale, and of x A^T."""
        d_low_TR = d_out_TO @ self.b_OR
        d_a_RI = (d_low_TR.T @ x_TI).to(dtype)
        d_b_OR = (d_out_TO.T @ low_TR).to(dtype).mul_(self.scale)
        return d_a_RI, d_b_OR, d_low_TR

    def input_gradient(self, d_out_TO: Tensor, d_low_TR: Tensor) -> Tensor:
        """Return the gradient of x [T, I]."""
        return (d_out_TO @ self.weight_OI).addmm_(d_low_TR, self.a_RI)


def lora_linear(x: Tensor, lora: Lora) -> Tensor:
    """Return the layer's output for [..., I]; A and B get gradients."""
    out: Tensor = _LoraLinear.apply(x.flatten(0, -2), lora.a_RI, lora.b_OR, lora)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, a_RI: Tensor, b_OR: Tensor, lora: Lora) -> Tensor:
        layer = lora.rounded(x_TI.dtype)
        out_TO, low_TR = layer.forward(x_TI)
        ctx.save_for_backward(x_TI, low_TR)
        ctx.layer, ctx.adapter_dtype = layer, a_RI.dtype
        return out_TO

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, low_TR = ctx.saved_tensors
        layer: Lora = ctx.layer
        d_a, d_b, d_low = layer.weight_gradients(x_TI, low_TR, d_out_TO, ctx.adapter_dtype)
        d_x = layer.input_gradient(d_out_TO, d_low) if ctx.needs_input_grad[0] else None
        return d_x, d_a, d_b, None
