"""What the training process says of an optimizer step."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReceipt:
    """What one optimizer step did; "kept" and "known" tokens as in ``LossStats``."""

    num_rows: int
    num_dropped_sequences: int  # outside the trust region
    num_row_tokens: int  # of all rows, prompts included
    num_tokens: int  # computed: what rows share counts once, what predicts nothing not at all
    trained_tokens: int  # kept: in the loss and its denominator
    num_dropped_tokens: int
    num_unknown_tokens: int  # without a sampler log-probability
    nonzero_advantage_share: float  # of kept tokens
    loss: float  # mean over kept tokens
    grad_norm: float  # before it is clipped to max_grad_norm
    parameter_change: float  # L2 norm over all adapter weights
    kl_sampler_trainer: float  # k3 estimate of KL(sampler || trainer), nats a known token
    logprob_gap: float  # mean |trainer - sampler|, nats a known token
    is_weight_mean: float  # after the cap, kept tokens
    is_weight_max: float  # before the cap, kept tokens
    is_clipped_share: float  # of kept tokens
    kl_reference: float | None  # k3 estimate of KL(trainer || reference); None: not computed
    forward_s: float
    backward_s: float
    optimizer_s: float
    peak_memory_mib: float  # of the process so far; on CUDA of the device

    def to_json(self) -> dict[str, Any]:
        """Return the receipt as plain JSON."""
        return asdict(self)
