"""A frozen linear layer with a low-rank adapter on it, as one operation.

peft computes the adapter in float32 beside the layer: every layer's input is copied, its output is
scaled, added and copied back, which costs more memory traffic than arithmetic. Here the adapter's
float32 weights are rounded to the layer's type once a call, as the engine that serves them does,
and their product is added inside the matrix product, whose sums are float32. In float32 the result
is peft's up to rounding.

Axes: ``T`` tokens, ``I`` inputs, ``O`` outputs, ``R`` rank.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear


def lora_linear(
    x: Tensor, weight_OI: Tensor, bias_O: Tensor | None, a_RI: Tensor, b_OR: Tensor, scale: float
) -> Tensor:
    """Return ``x W^T + bias + scale * (x A^T) B^T`` (LoRA, arXiv:2106.09685).

    Args:
        x: [..., I].
        weight_OI: frozen.
        bias_O: frozen.
        a_RI: gets a gradient.
        b_OR: gets a gradient.
        scale: alpha / rank.
    """
    out: Tensor = _LoraLinear.apply(  # type: ignore[no-untyped-call]
        x.flatten(0, -2), weight_OI, bias_O, a_RI, b_OR, scale
    )
    return out.view(*x.shape[:-1], -1)


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        a_RI: Tensor,
        b_OR: Tensor,
        scale: float,
    ) -> Tensor:
        a, b = a_RI.to(x_TI.dtype), (b_OR * scale).to(x_TI.dtype)
        low_TR = x_TI @ a.T
        ctx.save_for_backward(x_TI, weight_OI, a, b, low_TR)
        ctx.scale, ctx.adapter_dtype = scale, a_RI.dtype
        return linear(x_TI, weight_OI, bias_O).addmm_(low_TR, b.T)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, weight_OI, a, b, low_TR = ctx.saved_tensors
        d_low_TR = d_out_TO @ b
        d_x_TI = None
        if ctx.needs_input_grad[0]:
            d_x_TI = (d_out_TO @ weight_OI).addmm_(d_low_TR, a)
        d_a_RI = (d_low_TR.T @ x_TI).to(ctx.adapter_dtype)
        d_b_OR = (d_out_TO.T @ low_TR).to(ctx.adapter_dtype).mul_(ctx.scale)
        return d_x_TI, None, None, d_a_RI, d_b_OR, None
