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

from learner.trainer_config import TrainerConfig

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
    num_clipped_tokens: int = 0  # kept, where a limit of the importance weight acts
    num_nonzero_advantages: int = 0  # kept
    weight_sum: float = 0.0  # kept, after the limits
    weight_max: float = 0.0  # kept, before the limits
    k3_sum: float = 0.0  # known
    gap_sum: float = 0.0  # known, |trainer - sampler|
    reference_k3_sum: float = 0.0  # kept; 0 without a reference

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
    trainer); with q the trainer and p a reference, KL(trainer || reference).
    """
    return torch.expm1(log_ratio) - log_ratio


def sequence_means(
    values_N: Tensor, known_N: Tensor, sequence_N: Tensor, num_sequences: int
) -> Tensor:
    """Average values over each sequence's known tokens.

    Returns:
        [S]; 0 for a sequence without known tokens.
    """
    known = known_N.to(values_N.dtype)
    zeros = torch.zeros(num_sequences, dtype=values_N.dtype, device=values_N.device)
    totals = zeros.index_add(0, sequence_N, values_N * known)
    return totals / zeros.index_add(0, sequence_N, known).clamp(min=1.0)


def cispo(
    logprobs_N: Tensor, ratio_N: Tensor, advantages_N: Tensor, cap: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``-sg(min(ratio, cap)) * A * logprob``, the weights, and where the cap acts.

    ``sg`` stops the gradient: the truncated importance weight corrects for the sampler not being
    quite the policy that is trained, and every token still moves (CISPO, arXiv:2506.13585, without
    its lower bound, which the paper does not use either; Yao et al. 2025, "Your efficient RL
    framework secretly brings you off-policy RL training", for the sampler-trainer case, where 2 is
    the usual cap).
    """
    weight_N = ratio_N.detach().clamp(max=cap)
    return -weight_N * advantages_N * logprobs_N, weight_N, ratio_N.detach() > cap


def clipped(
    ratio_N: Tensor, advantages_N: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)``, weights, and where it clips.

    PPO's clipped surrogate (arXiv:1707.06347) with DAPO's two limits (arXiv:2503.14476). Unlike
    both, the ratio is to the sampler's recorded log-probabilities, not to the trainer's own before
    the step: with one step a batch that one would always be 1.
    """
    limited_N = ratio_N.clamp(1.0 - low, 1.0 + high)
    losses_N = -torch.minimum(ratio_N * advantages_N, limited_N * advantages_N)
    acts_N = (limited_N * advantages_N < ratio_N * advantages_N).detach()
    return losses_N, torch.where(acts_N, limited_N, ratio_N).detach(), acts_N


def policy_loss(
    trainer_logprobs_N: Tensor,
    sampler_logprobs_N: Tensor,
    advantages_N: Tensor,
    sequence_N: Tensor,
    *,
    num_sequences: int,
    config: TrainerConfig,
    ref_logprobs_N: Tensor | None = None,
) -> tuple[Tensor, LossStats]:
    """Sum the policy loss, and the KL to a reference, over the kept tokens.

    ``config.objective`` chooses the formula: ``cispo`` and ``clip`` as in the functions of those
    names, the ratio being ``exp(trainer - sampler)``. ``gspo`` (arXiv:2507.18071) clips one ratio a
    sequence, ``exp(mean over its known tokens of (trainer - sampler))``; unlike the paper, which
    averages over sequences, a sequence counts with its number of tokens, as everywhere here.

    A sequence whose mean ``|trainer - sampler|`` exceeds ``config.max_sequence_gap`` was sampled by
    another policy for practical purposes: it leaves numerator and denominator. So does a token
    whose sampler log-probability is unknown, which is written as NaN: 0.0 would claim that the
    sampler was certain.

    With reference log-probabilities, ``config.kl_coefficient * ratio * k3(ref - trainer)`` is added
    per kept token: GRPO's estimate of KL(trainer || reference) (arXiv:2402.03300) with the token's
    importance weight, through which the gradient flows. Without it the gradient is not that of the
    KL (DeepSeek-V3.2, arXiv:2512.02556); with it, it is ``ratio * (trainer - ref)`` per token.

    Args:
        trainer_logprobs_N: [N] of the policy being trained, with gradient.
        sampler_logprobs_N: [N] as recorded when the tokens were sampled, NaN where unknown.
        advantages_N: [N].
        sequence_N: int64 [N], which sequence a token belongs to, in 0..num_sequences-1.
        num_sequences: S.
        config: the objective and its limits.
        ref_logprobs_N: [N] of the reference, without gradient; None leaves the KL out.

    Returns:
        The loss summed over kept tokens (a scalar with gradient), and the statistics.
    """
    known_N = torch.isfinite(sampler_logprobs_N)
    # Masked before any arithmetic: NaN * 0 is NaN, in the loss and in its gradient.
    sampler_N = torch.where(known_N, sampler_logprobs_N, trainer_logprobs_N.detach())
    log_ratio_N = (trainer_logprobs_N - sampler_N).clamp(max=MAX_LOG_RATIO)
    gap_N = log_ratio_N.detach().abs()
    dropped_S = sequence_means(gap_N, known_N, sequence_N, num_sequences) > config.max_sequence_gap
    kept_N = known_N & ~dropped_S[sequence_N]

    if config.objective == "gspo":
        mean_S = sequence_means(log_ratio_N, known_N, sequence_N, num_sequences)
        ratio_N = mean_S[sequence_N].exp()
    else:
        ratio_N = log_ratio_N.exp()
    if config.objective == "cispo":
        losses_N, weight_N, limited_N = cispo(
            trainer_logprobs_N, ratio_N, advantages_N, config.is_cap
        )
    else:
        losses_N, weight_N, limited_N = clipped(
            ratio_N, advantages_N, config.clip_low, config.clip_high
        )
    reference_k3_sum = 0.0
    if ref_logprobs_N is not None:
        k3_N = k3((ref_logprobs_N - trainer_logprobs_N).clamp(max=MAX_LOG_RATIO))
        losses_N = losses_N + config.kl_coefficient * log_ratio_N.exp() * k3_N
        reference_k3_sum = float(k3_N.detach()[kept_N].sum())
    loss_sum = torch.where(kept_N, losses_N, torch.zeros_like(losses_N)).sum()
    stats = LossStats(
        num_sequences=num_sequences,
        num_dropped_sequences=int(dropped_S.sum()),
        num_tokens=int(kept_N.sum()),
        num_dropped_tokens=int((known_N & ~kept_N).sum()),
        num_unknown_tokens=int((~known_N).sum()),
        num_clipped_tokens=int((kept_N & limited_N).sum()),
        num_nonzero_advantages=int((kept_N & (advantages_N != 0)).sum()),
        weight_sum=float(weight_N[kept_N].sum()),
        weight_max=float(ratio_N.detach()[kept_N].max()) if kept_N.any() else 0.0,
        k3_sum=float(k3(log_ratio_N.detach())[known_N].sum()),
        gap_sum=float(gap_N[known_N].sum()),
        reference_k3_sum=reference_k3_sum,
    )
    return loss_sum, stats
