"""The policy loss and what is measured beside it.

Pure functions over the trained tokens of a micro-batch. Nothing here divides by a number of
tokens: losses and statistics are sums, so that micro-batches add up and the caller normalizes once
for the whole step. How tokens become log-probabilities, and what is done with the gradient, is the
trainer's part.

Axes: ``N`` trained tokens of a micro-batch, all rows one after another; ``S`` sequences (rows).
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp(20) = 4.9e8 is still finite when summed in float32; weights are capped far below it
anyway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossStats:
    """Sums over trained tokens; ``a + b`` is the statistics of both micro-batches.

    "Known" tokens carry a sampler log-probability; "kept" ones are known and lie in a sequence
    that both policies agree on. Only kept tokens enter the loss and its denominator.
    """

    num_sequences: int = 0
    num_dropped_sequences: int = 0  # outside the trust region
    num_tokens: int = 0  # kept
    num_dropped_tokens: int = 0  # known, in a dropped sequence
    num_unknown_tokens: int = 0
    num_clipped_tokens: int = 0  # kept, importance weight above the cap
    num_nonzero_advantages: int = 0  # kept
    weight_sum: float = 0.0  # kept, after the cap
    weight_max: float = 0.0  # kept, before the cap
    k3_sum: float = 0.0  # known
    gap_sum: float = 0.0  # known, |trainer - sampler|

    def __add__(self, other: "LossStats") -> "LossStats":
        """Add the sums; take the larger of the maxima."""
        values = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return LossStats(**values | {"weight_max": max(self.weight_max, other.weight_max)})

    @property
    def num_known_tokens(self) -> int:
        """The denominator of ``k3_sum`` and ``gap_sum``."""
        return self.num_tokens + self.num_dropped_tokens


def k3(log_ratio: Tensor) -> Tensor:
    """Estimate KL(q || p) per token from samples of q: ``exp(r) - 1 - r``, ``r = log(p / q)``.

    Never negative, unbiased, of low variance (J. Schulman, "Approximating KL divergence", 2020,
    joschu.net/blog/kl-approx.html). With q the sampler and p the trainer it is KL(sampler ||
    trainer).
    """
    return torch.expm1(log_ratio) - log_ratio


def sequence_gaps(gap_N: Tensor, known_N: Tensor, sequence_N: Tensor, num_sequences: int) -> Tensor:
    """Average the absolute log-probability gap over each sequence's known tokens.

    Returns:
        [S]; 0 for a sequence without known tokens.
    """
    known = known_N.to(gap_N.dtype)
    zeros = torch.zeros(num_sequences, dtype=gap_N.dtype, device=gap_N.device)
    totals = zeros.index_add(0, sequence_N, gap_N * known)
    return totals / zeros.index_add(0, sequence_N, known).clamp(min=1.0)


def policy_loss(
    trainer_logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    advantages_N: Tensor,
    sequence_N: Tensor,
    *,
    num_sequences: int,
    is_cap: float,
    max_sequence_gap: float,
) -> tuple[Tensor, LossStats]:
    """Sum ``-sg(min(exp(trainer - sampler), cap)) * A * trainer`` over the kept tokens.

    ``sg`` stops the gradient: the truncated importance weight corrects for the sampler not being
    quite the policy that is trained, and every kept token still moves (CISPO, arXiv:2506.13585,
    without its lower bound, which the paper does not use either; Yao et al. 2025, "Your efficient
    RL framework secretly brings you off-policy RL training", for the sampler-trainer case, where 2
    is the usual cap).

    A sequence whose mean ``|trainer - sampler|`` exceeds ``max_sequence_gap`` was sampled by
    another policy for practical purposes: it leaves numerator and denominator. So does a token
    whose sampler log-probability is unknown, which is written as NaN: 0.0 would claim that the
    sampler was certain.

    Args:
        trainer_logprobs_N: [N] of the policy being trained, with gradient.
        sampler_logprobs_N: [N] as recorded when the tokens were sampled, NaN where unknown.
        advantages_N: [N].
        sequence_N: int64 [N], which sequence a token belongs to, in 0..num_sequences-1.
        num_sequences: S.
        is_cap: upper limit of the importance weight.
        max_sequence_gap: limit of a sequence's mean absolute gap, in nats per token.

    Returns:
        The loss summed over kept tokens (a scalar with gradient), and the statistics.
    """
    known_N = torch.isfinite(sampler_logprobs_N)
    # Masked before any arithmetic: NaN * 0 is NaN, in the loss and in its gradient.
    sampler_N = torch.where(known_N, sampler_logprobs_N, trainer_logprobs_N.detach())
    log_ratio_N = (trainer_logprobs_N.detach() - sampler_N).clamp(max=MAX_LOG_RATIO)
    gaps_S = sequence_gaps(log_ratio_N.abs(), known_N, sequence_N, num_sequences)
    dropped_S = gaps_S > max_sequence_gap
    kept_N = known_N & ~dropped_S[sequence_N]

    ratio_N = log_ratio_N.exp()
    weight_N = ratio_N.clamp(max=is_cap)
    losses_N = -weight_N * advantages_N * trainer_logprobs_N
    loss_sum = torch.where(kept_N, losses_N, torch.zeros_like(losses_N)).sum()
    stats = LossStats(
        num_sequences=num_sequences,
        num_dropped_sequences=int(dropped_S.sum()),
        num_tokens=int(kept_N.sum()),
        num_dropped_tokens=int((known_N & ~kept_N).sum()),
        num_unknown_tokens=int((~known_N).sum()),
        num_clipped_tokens=int((kept_N & (ratio_N > is_cap)).sum()),
        num_nonzero_advantages=int((kept_N & (advantages_N != 0)).sum()),
        weight_sum=float(weight_N[kept_N].sum()),
        weight_max=float(ratio_N[kept_N].max()) if kept_N.any() else 0.0,
        k3_sum=float(k3(log_ratio_N)[known_N].sum()),
        gap_sum=float(log_ratio_N.abs()[known_N].sum()),
    )
    return loss_sum, stats
