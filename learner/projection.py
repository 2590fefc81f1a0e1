"""From hidden states to log-probabilities of given tokens, a few states at a time.

The vocabulary is what makes a small model's memory large: logits of 1,000 tokens are 200 MB in
float32. They are computed in chunks and not kept. What the gradient needs of them is one vector a
token, ``W[target] - sum_v p_v W[v]``, and that is worked out while the probabilities are there, so
the backward pass neither stores logits nor computes them again.

Axes: ``U`` states that predict something, ``N`` trained tokens (several may be predicted from one
state), ``D`` hidden units, ``V`` vocabulary.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from learner.exponential import exp_of_difference_

CHUNK_LOGITS = 2**24
"""Logits that exist at once, at least one state's: 34 MB in bfloat16, 341 states of the packaged
model. 612 states take 7 % longer with 2**23, 25 % with 2**22, no less with 2**25 (two cores)."""

BLOCK_LOGITS = 2**20
"""Logits that are exponentiated at once, in float32: 4 MB stay in a processor's cache from one pass
over them to the next. For 512 states of the packaged model that takes 18 ms of a core, over a whole
chunk 104 ms; the two matrix products take 330 ms."""


def token_logprobs(
    hidden_UD: Tensor, weight_VD: Tensor, state_N: Tensor, target_N: Tensor
) -> Tensor:
    """Return ``log softmax(hidden[state] W^T)[target]`` of each trained token, [N].

    Logits are computed in the inputs' type, as the engine does it, and normalized in float32
    (float64 for float64 inputs). The projection is frozen: only the states get a gradient.

    Args:
        hidden_UD: states.
        weight_VD: the vocabulary projection.
        state_N: int64, the state that predicts a token.
        target_N: int64, the token.
    """
    needs_grad = torch.is_grad_enabled() and hidden_UD.requires_grad
    out: Tensor = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_UD, weight_VD, state_N, target_N, needs_grad
    )
    return out


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_UD: Tensor,
        weight_VD: Tensor,
        state_N: Tensor,
        target_N: Tensor,
        needs_grad: bool,
    ) -> Tensor:
        precise = torch.promote_types(hidden_UD.dtype, torch.float32)
        logprobs_N = hidden_UD.new_empty(len(state_N), dtype=precise)
        if needs_grad:
            slope_ND = hidden_UD.new_empty(len(state_N), hidden_UD.shape[1], dtype=precise)
        for start, states_uD in _chunks(hidden_UD, len(weight_VD)):
            end = start + len(states_uD)
            here_n = ((state_N >= start) & (state_N < end)).nonzero().squeeze(1)
            state_n, target_n = state_N[here_n] - start, target_N[here_n]
            logits_uV = states_uD @ weight_VD.T
            logit_n = logits_uV[state_n, target_n].to(precise)
            sum_u1, logsumexp_u1 = _exponentiate(logits_uV, precise)
            logprobs_N[here_n] = logit_n - logsumexp_u1[state_n, 0]
            if needs_grad:
                mean_uD = (logits_uV @ weight_VD).to(precise).div_(sum_u1)
                slope_ND[here_n] = weight_VD[target_n].to(precise) - mean_uD[state_n]
        if needs_grad:
            ctx.save_for_backward(slope_ND, state_N)
            ctx.like = hidden_UD
        return logprobs_N

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_logprobs_N: Tensor) -> tuple[Tensor | None, ...]:
        slope_ND, state_N = ctx.saved_tensors
        d_hidden_UD = torch.zeros_like(ctx.like, dtype=slope_ND.dtype)
        d_hidden_UD.index_add_(0, state_N, slope_ND * d_logprobs_N[:, None])
        return d_hidden_UD.to(ctx.like.dtype), None, None, None, None


def _exponentiate(logits_uV: Tensor, precise: torch.dtype) -> tuple[Tensor, Tensor]:
    """Replace logits by ``exp(logit - largest of the state)``; return their sums and logsumexp.

    What is left is the probabilities times their sum, rounded to the logits' type: dividing by the
    sum is left for after a product with them, which is far smaller.

    Returns:
        Two [u, 1] in the precise type.
    """
    sum_u1 = logits_uV.new_empty(len(logits_uV), 1, dtype=precise)
    logsumexp_u1 = torch.empty_like(sum_u1)
    size = max(1, BLOCK_LOGITS // logits_uV.shape[1])
    for start in range(0, len(logits_uV), size):
        block = slice(start, start + size)
        largest_b1 = logits_uV[block].amax(-1, keepdim=True).to(precise)
        weights_bV = exp_of_difference_(logits_uV[block].to(precise), largest_b1)
        torch.sum(weights_bV, -1, keepdim=True, out=sum_u1[block])
        logsumexp_u1[block] = sum_u1[block].log().add_(largest_b1)
        logits_uV[block] = weights_bV
    return sum_u1, logsumexp_u1


def _chunks(hidden_UD: Tensor, vocabulary: int) -> Iterator[tuple[int, Tensor]]:
    num = math.ceil(len(hidden_UD) * vocabulary / CHUNK_LOGITS) or 1
    size = math.ceil(len(hidden_UD) / num) or 1
    for start in range(0, len(hidden_UD), size):
        yield start, hidden_UD[start : start + size]
