"""Frozen linear layers with low-rank adapters on them, those that read the same input together.

peft computes the adapter in float32 beside the layer: every layer's input is copied, its output is
scaled, added and copied back, which costs more memory traffic than arithmetic. Here the adapter's
float32 weights are rounded to the layer's type once a call, as the engine that serves them does,
and their product is added inside the matrix product, whose sums are float32. In float32 the result
is peft's up to rounding. Of layers with one input (a block's queries, keys and values) the A stand
one below the other, so that the input is read once for all of them.

Axes: ``T`` tokens, ``I`` inputs, ``O`` outputs, ``R`` rank, ``S`` all ranks of a fan.
"""

from collections.abc import Sequence
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


class Fan:
    """Layers that read the same input, their adapters rounded to its type."""

    def __init__(self, layers: Sequence[Lora], dtype: torch.dtype) -> None:
        self._layers = layers
        self._a_SI = torch.cat([layer.a_RI for layer in layers]).to(dtype)
        self._b_OR = [(layer.b_OR * layer.scale).to(dtype) for layer in layers]
        self._ranks = [len(layer.a_RI) for layer in layers]
        self._adapter_dtype = layers[0].a_RI.dtype

    def forward(self, x_TI: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return each layer's output [T, O], and x A^T of all [T, S]."""
        low_TS = x_TI @ self._a_SI.T
        outs_TO = [
            linear(x_TI, layer.weight_OI, layer.bias_O).addmm_(low_TR, b_OR.T)
            for layer, low_TR, b_OR in zip(
                self._layers, low_TS.split_with_sizes(self._ranks, 1), self._b_OR, strict=True
            )
        ]
        return outs_TO, low_TS

    def weight_gradients(
        self, x_TI: Tensor, low_TS: Tensor, d_outs_TO: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of A and B of each layer in turn, and that of x A^T [T, S]."""
        d_low_TS = torch.cat(
            [d_out_TO @ b_OR for d_out_TO, b_OR in zip(d_outs_TO, self._b_OR, strict=True)], 1
        )
        d_a_RI = (d_low_TS.T @ x_TI).to(self._adapter_dtype).split_with_sizes(self._ranks)
        grads = []
        for layer, d_a, d_out_TO, low_TR in zip(
            self._layers, d_a_RI, d_outs_TO, low_TS.split_with_sizes(self._ranks, 1), strict=True
        ):
            d_b_OR = (d_out_TO.T @ low_TR).to(self._adapter_dtype).mul_(layer.scale)
            grads += [d_a, d_b_OR]
        return grads, d_low_TS

    def input_gradient(self, d_outs_TO: Sequence[Tensor], d_low_TS: Tensor) -> Tensor:
        """Return the gradient of x [T, I]."""
        d_x_TI = d_low_TS @ self._a_SI
        for layer, d_out_TO in zip(self._layers, d_outs_TO, strict=True):
            d_x_TI.addmm_(d_out_TO, layer.weight_OI)
        return d_x_TI


def adapters(layers: Sequence[Lora]) -> list[Tensor]:
    """Return what of layers gets gradients: A and B of each in turn."""
    return [weight for layer in layers for weight in (layer.a_RI, layer.b_OR)]


def lora_linear(x: Tensor, lora: Lora) -> Tensor:
    """Return the layer's output for [..., I]; x, A and B get gradients."""
    x_TI = x.flatten(0, -2)
    out: Tensor = _LoraLinear.apply(x_TI, lora.a_RI, lora.b_OR, lora)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


class _LoraLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TI: Tensor, a_RI: Tensor, b_OR: Tensor, lora: Lora) -> Tensor:
        fan = Fan([lora], x_TI.dtype)
        [out_TO], low_TR = fan.forward(x_TI)
        ctx.save_for_backward(x_TI, low_TR)
        ctx.fan = fan
        return out_TO

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out_TO: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, low_TR = ctx.saved_tensors
        fan: Fan = ctx.fan
        grads, d_low = fan.weight_gradients(x_TI, low_TR, [d_out_TO])
        d_x = fan.input_gradient([d_out_TO], d_low) if ctx.needs_input_grad[0] else None
        return d_x, *grads, None
