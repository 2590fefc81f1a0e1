"""Settings of training, for the service and the training process alike; imports no torch."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TrainerConfig(BaseModel):
    """How the adapter is shaped and how an optimizer step is made.

    A version that is continued keeps its own rank, alpha and layers.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    rank: int = Field(default=16, ge=1, le=256)
    """Rank of the LoRA matrices. 8 to 32 is enough for reinforcement learning ("LoRA Without
    Regret", Thinking Machines 2025); 16 is also the engine's default limit (``max_lora_rank``)."""

    alpha: int = Field(default=32, ge=1)
    """LoRA scale: the update is multiplied by alpha / rank. 32 as in "LoRA Without Regret"."""

    target_modules: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
    )
    """Names of the layers that get an adapter: every linear layer of a Llama-like block, attention
    alone learns worse ("LoRA Without Regret")."""

    learning_rate: float = Field(default=5e-4, ge=0.0, allow_inf_nan=False)
    """AdamW's step size. Measured for the packaged 135M model in practice of 8 × 8, two runs of
    each: the held-out score, 0.33 before, is 0.50 and 0.59 after five steps and 0.69 and 0.71 after
    thirty; at 1e-3 it is 0.61 and 0.64 after five and gets no further, down to 0.53 on the way (to
    step 10 and 25). Larger models want about ten times the rate of full fine-tuning, around
    1e-4."""

    max_grad_norm: float = Field(default=1.0, gt=0.0)
    """The gradient is scaled down to this L2 norm; 1.0 as in TRL and verl."""

    objective: Literal["cispo", "clip", "gspo"] = "cispo"
    """``cispo``: log-probabilities weighted by truncated importance weights, every token moves.
    ``clip``: the weight itself, clipped (PPO; DAPO's clip-higher). ``gspo``: one clipped weight a
    sequence. Formulas and sources stand in ``learner/losses.py``."""

    is_cap: float = Field(default=2.0, gt=0.0)
    """``cispo``: upper limit of the importance weight trainer / sampler (truncated importance
    sampling; 2.0 as in Agent Lightning 1.0 and ms-swift)."""

    clip_low: float = Field(default=0.2, gt=0.0, le=1.0)
    """``clip`` and ``gspo``: a weight below 1 - clip_low stops falling. 0.2 as in PPO and DAPO;
    GSPO's paper takes 3e-4."""

    clip_high: float = Field(default=0.28, gt=0.0)
    """``clip`` and ``gspo``: a weight above 1 + clip_high stops rising. 0.28 as in DAPO, so that
    unlikely tokens may still become likely; GSPO's paper takes 4e-4."""

    kl_coefficient: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """Weight of KL(trainer || reference) in the loss, per token. 0, as in Dr. GRPO and DAPO, costs
    nothing; anything else one more forward pass."""

    kl_reference: Literal["parent", "base"] = "parent"
    """What the KL is measured from: the version that is continued, or the base model with the
    adapter switched off."""

    max_sequence_gap: float = Field(default=0.5, gt=0.0)
    """A sequence whose mean |trainer - sampler| log-probability gap (nats per token) exceeds this
    is left out. The bfloat16 engine and trainer differ by about 0.06 (k3 0.002), so 0.5 means
    other weights or other sampling."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of the frozen base. The adapter's weights are float32 always. On CPUs with
    bfloat16 arithmetic it is twice as fast as float32."""

    tokens_per_microbatch: int = Field(default=1280, ge=1)
    """Rows are computed together up to this many tokens, a shared beginning counted once; bounds
    memory, not the result. Memory follows the tokens of the fullest micro-batch: of the packaged
    model 1.5 GiB at 800 and 1.7 at 1,150 (two cores, 2026-12-01)."""

    gradient_checkpointing: bool = False
    """Keep only what enters each layer and compute the rest again in the backward pass: far less
    memory for about a third more time."""

    seed: int = Field(default=0, ge=0)
    """Initial adapter weights; two runs on the same rows, machine and threads are equal bit for
    bit."""

    num_threads: int | None = Field(default=None, ge=1)
    """Threads of the training process; None leaves torch's default, one per core."""
