"""A block of a transformer, of the families whose blocks are alike, put together anew.

Attention and a gated unit, each of the hidden states normalized and added to them: so are the
blocks of Llama, Mistral, Qwen 2 and Qwen 3. Where every linear layer of one has an adapter, it is
computed here by what keeps least (``learner.frugal_layers``); transformers' own way serves what is
left, layer by layer. Both compute the same.

Axes: ``T`` tokens, ``D`` hidden units, ``K`` key heads, ``R`` query heads that share one, ``H``
all query heads, ``E`` units of a head.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers.activations import SiLUActivation

from learner.forest_layout import Layout
from learner.frugal_layers import Norm, normed_gated_unit, normed_linears, rms_norm, rotate
from learner.lora_linear import Lora, lora_linear
from learner.tree_attention import forest_attention

ADAPTER = "default"
"""What peft calls an adapter that is given no name."""

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
_BLOCKS = {f"{family}DecoderLayer" for family in FAMILIES}
_NORMS = {f"{family}RMSNorm" for family in FAMILIES}
"""Layers of transformers that compute what is computed here, by name of their class; others are
left as they are (a Gemma's normalization, say, adds 1 to its weight)."""


def replace_layers(model: torch.nn.Module, adapted: type[torch.nn.Module]) -> None:
    """Let layers compute the same by fewer operations, and keep less until the backward pass.

    Args:
        model: with adapters.
        adapted: what a linear layer with an adapter is; peft's.
    """
    for module in model.modules():
        if isinstance(module, adapted):
            forward: Any = _linear
        elif type(module).__name__ in _NORMS:
            forward = _rms_norm
        elif type(module).__name__ in _BLOCKS and _is_plain(module, adapted):
            forward = _block
        else:
            continue
        setattr(module, "forward", partial(forward, module))  # noqa: B010


def _is_plain(block: Any, adapted: type[torch.nn.Module]) -> bool:
    """Say whether all its linear layers are adapted, and it attends to all that came before."""
    windows = (block.self_attn.config, block.self_attn)
    return (
        isinstance(block.mlp.act_fn, SiLUActivation)
        and all(getattr(one, "sliding_window", None) is None for one in windows)
        and all(isinstance(layer, adapted) for layer in _linears(block))
    )


def _linears(block: Any) -> tuple[Any, ...]:
    attention, unit = block.self_attn, block.mlp
    return (
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(unit.gate_proj, unit.up_proj, unit.down_proj),
    )


def _block(
    block: Any,
    hidden_1TD: Tensor,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    forest: Layout | None = None,
    **given: Any,
) -> Tensor:
    """Compute a block, in place of transformers' ``forward``."""
    if forest is None or block.mlp.down_proj.disable_adapters:
        given |= {"position_embeddings": position_embeddings}
        given |= {} if forest is None else {"forest": forest}
        out: Tensor = type(block).forward(block, hidden_1TD, **given)
        return out
    query, key, value, output, *unit = (_lora(layer) for layer in _linears(block))
    x_TD = hidden_1TD[0]
    projected = normed_linears(x_TD, _norm(block.input_layernorm), (query, key, value))
    cos_1TE, sin_1TE = position_embeddings
    attended_TD = _attended(block.self_attn, projected, cos_1TE[0], sin_1TE[0], forest)
    x_TD = x_TD + lora_linear(attended_TD, output)
    x_TD = x_TD + normed_gated_unit(x_TD, _norm(block.post_attention_layernorm), *unit)
    return x_TD[None]


def _attended(
    attention: Any, projected: tuple[Tensor, ...], cos_TE: Tensor, sin_TE: Tensor, forest: Layout
) -> Tensor:
    """Return [T, D], what the heads have read."""
    T, E = cos_TE.shape
    q_THE, k_TKE, v_TKE = (x.view(T, -1, E) for x in projected)
    if hasattr(attention, "q_norm"):
        q_THE = rms_norm(q_THE, _norm(attention.q_norm))
        k_TKE = rms_norm(k_TKE, _norm(attention.k_norm))
    q_TKRE, scale = q_THE.view(T, k_TKE.shape[1], -1, E), attention.scaling
    q_KTRE = rotate(q_TKRE, cos_TE * scale, sin_TE * scale)
    k_KTE = rotate(k_TKE[:, :, None], cos_TE, sin_TE).squeeze(2)
    return forest_attention(q_KTRE, k_KTE, v_TKE.transpose(0, 1), forest).view(T, -1)


def _linear(layer: Any, x: Tensor) -> Tensor:
    """Compute an adapted layer, in place of peft's own ``forward``."""
    if layer.disable_adapters:
        return linear(x, layer.base_layer.weight, layer.base_layer.bias)
    return lora_linear(x, _lora(layer))


def _rms_norm(layer: Any, x: Tensor) -> Tensor:
    return rms_norm(x, _norm(layer))


def _norm(layer: Any) -> Norm:
    return Norm(weight_D=layer.weight, eps=layer.variance_epsilon)


def _lora(layer: Any) -> Lora:
    return Lora(
        weight_OI=layer.base_layer.weight,
        bias_O=layer.base_layer.bias,
        a_RI=layer.lora_A[ADAPTER].weight,
        b_OR=layer.lora_B[ADAPTER].weight,
        scale=layer.scaling[ADAPTER],
    )
