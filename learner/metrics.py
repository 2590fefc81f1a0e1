"""Prometheus metrics of learning; ``GET /metrics`` shows them.

What TRL's ``GRPOTrainer`` (1.16) logs of a step stands under TRL's name, with ``denizen_train_``
before it and ``_`` for ``/``, which Prometheus does not allow in names: ``completions/mean_length``
is ``denizen_train_completions_mean_length``. What the newest step did not measure is not shown:
``kl`` without a KL in the loss, all figures of the optimizer where there was no signal. TRL's
``entropy`` is never measured: the projection onto the vocabulary keeps the sampled tokens only.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from prometheus_client import REGISTRY, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

PREFIX = "denizen_train_"

TRL_NAMES = {
    "reward": "Mean reward; where nothing was practised, of the recorded episodes",
    "reward_std": "Standard deviation of all rewards",
    "frac_reward_zero_std": "Share of groups whose rollouts all have the same reward",
    "completions/mean_length": "Tokens of a completion",
    "completions/clipped_ratio": "Share of the rollouts that were trained on, not of all, that ran "
    "into the token limit",
    "loss": "Policy loss, and KL where it is part of it, per token",
    "grad_norm": "L2 norm of the gradient before it is clipped",
    "kl": "KL(trainer || reference) per token",
    "clip_ratio/region_mean": "Share of tokens whose importance weight a limit acts on; of every "
    "objective, and for either sign of the advantage",
    "sampling/sampling_logp_difference/mean": "Mean |trainer - sampler| log-probability of a token",
    "sampling/importance_sampling_ratio/mean": "Mean importance weight, limited",
    "sampling/importance_sampling_ratio/max": "Largest importance weight before it is limited",
    "step_time": "Seconds from the first sample to the new weights",
}
"""What TRL calls it, and what it is here where that is not the same."""

OWN_NAMES = {
    "parameter_change": "L2 norm of how far the step moved the adapter",
    "nonzero_advantage_share": "Share of trained tokens whose advantage is not zero",
    "kl_sampler_trainer": "KL(sampler || trainer) per token, k3 estimate",
    "staleness_max": "Steps between the oldest weights that sampled for it and its own",
    "peak_memory_mib": "Peak memory of the training process, on CUDA of the device",
    "seconds_sampling": "Seconds of the step until its rows were there",
    "seconds_training": "Seconds of the step after that",
}
"""As in a step's receipt."""

STEPS = Counter("denizen_train_steps", "Optimizer steps by what came of them", ["result"])
TOKENS = Counter("denizen_train_tokens", "Tokens that were trained on")
SKIPPED_GROUPS = Counter(
    "denizen_train_groups_skipped", "Groups that could not teach, by reason", ["reason"]
)
CYCLES = Counter("denizen_cycles", "Learning cycles by how they ended", ["state"])
CYCLE_SECONDS = Counter(
    "denizen_cycle_seconds",
    "Seconds of learning cycles by phase; sampling and training are those of steps",
    ["phase"],
)


class NewestStep(Collector):
    """Shows what the newest step measured, and nothing before the first one."""

    def __init__(self) -> None:
        self.values: Mapping[str, float] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield a gauge for each figure that is known."""
        for name, what in (TRL_NAMES | OWN_NAMES).items():
            if name in self.values:
                shown = PREFIX + name.replace("/", "_")
                yield GaugeMetricFamily(shown, f"{what} (newest step)", self.values[name])


NEWEST_STEP = NewestStep()
REGISTRY.register(NEWEST_STEP)


def note_step(receipt: Mapping[str, Any]) -> None:
    """Count a step that has ended, and show its figures in place of the last one's."""
    NEWEST_STEP.values = figures(receipt)
    is_trained = "trained_tokens" in receipt
    STEPS.labels("trained" if is_trained else "no_signal").inc()
    TOKENS.inc(receipt["trained_tokens"] if is_trained else 0)
    for reason, num in receipt["skipped_groups"].items():
        SKIPPED_GROUPS.labels(reason).inc(num)
    for phase in ("sampling", "training"):
        CYCLE_SECONDS.labels(phase).inc(receipt[f"seconds_{phase}"])


def figures(receipt: Mapping[str, Any]) -> dict[str, float]:
    """Return what a step's receipt measured, under the names of the two tables above."""
    num_trained = receipt["num_rollouts"] - sum(receipt["skipped_rollouts"].values())
    practised, recorded = receipt.get("reward_mean"), (receipt.get("live") or {}).get("reward_mean")
    found = {
        "reward": recorded if practised is None else practised,
        "reward_std": receipt.get("reward_std"),
        "frac_reward_zero_std": receipt.get("frac_reward_zero_std"),
        "completions/mean_length": receipt.get("mean_completion_tokens"),
        "completions/clipped_ratio": (
            receipt["num_truncated"] / num_trained if num_trained else None
        ),
        "loss": receipt.get("loss"),
        "grad_norm": receipt.get("grad_norm"),
        "kl": receipt.get("kl_reference"),
        "clip_ratio/region_mean": receipt.get("is_clipped_share"),
        "sampling/sampling_logp_difference/mean": receipt.get("logprob_gap"),
        "sampling/importance_sampling_ratio/mean": receipt.get("is_weight_mean"),
        "sampling/importance_sampling_ratio/max": receipt.get("is_weight_max"),
        "step_time": receipt.get("seconds"),
    } | {name: receipt.get(name) for name in OWN_NAMES}
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def seconds_in(phase: str) -> Iterator[None]:
    """Count the time that is spent inside for a phase of a cycle, whatever ends it."""
    began = time.perf_counter()
    try:
        yield
    finally:
        CYCLE_SECONDS.labels(phase).inc(time.perf_counter() - began)
