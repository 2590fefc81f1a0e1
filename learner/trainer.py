"""One adapter under training: its weights, the optimizer, and the step.

Knows nothing of versions, tasks, rewards or where rows come from. Only the adapter's weights ever
change. A step that would not teach anything raises instead of succeeding quietly.

Axes: ``N`` trained tokens of a micro-batch.
"""

import math
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learner import causal_lm, microbatches, moments
from learner.adapter_files import moments_path
from learner.effect import Effect, effect_of, is_rewarded
from learner.errors import NoSignalError, TrainingError
from learner.forests import pack
from learner.lora_model import continuing, load_adapter, load_model, save_adapter
from learner.losses import LossStats, policy_loss
from learner.microbatches import MicroBatch
from learner.rows import TrainingRow
from learner.step_receipt import StepReceipt
from learner.trainer_config import TrainerConfig


class Trainer:
    """Owns model and optimizer of one learning run; AdamW's moments last from step to step."""

    def __init__(
        self,
        model_dir: Path,
        config: TrainerConfig,
        *,
        parent_adapter: Path | None = None,
        resume_from: Path | None = None,
    ) -> None:
        """Load the base and start from the parent's adapter, or from one that changes nothing.

        Args:
            model_dir: the base model as a Hugging Face folder.
            config: shape of the adapter and of the steps.
            parent_adapter: folder of the adapter to continue from; its rank, alpha and layers are
                kept, whatever ``config`` says of them.
            resume_from: folder of an adapter that an earlier process of the same run wrote after
                a step, with its moments beside it; the next step is then what it would have been.

        Raises:
            TrainingError: the base model or the moments cannot be loaded.
            AdapterError: the parent cannot be read or fits no such model.
        """
        if parent_adapter is not None:
            config = continuing(config, parent_adapter)
        self.config = config
        self._base_name = model_dir.resolve().name
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.manual_seed(config.seed)
        self._model = load_model(model_dir, config).to(self._device)
        if parent_adapter is not None:
            load_adapter(self._model, parent_adapter)
        self._causal_lm: Any = self._model.get_base_model()
        causal_lm.check(self._causal_lm, name=self._base_name)
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._start = [parameter.detach().clone() for parameter in self._parameters]
        self._watched: tuple[MicroBatch, Tensor] | None = None  # for ``effect``
        # No weight decay: it would move the weights even where the gradient is zero.
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=config.learning_rate, weight_decay=0.0, fused=True
        )
        if resume_from is not None:
            load_adapter(self._model, resume_from)
            moments.load(moments_path(resume_from), self._optimizer, self._named_parameters())

    def step(self, rows: Sequence[TrainingRow]) -> StepReceipt:
        """Make one optimizer step on all rows together.

        Raises:
            NoSignalError: no row, or no advantage other than zero; nothing was computed.
            RowError: a token id lies outside the model's vocabulary.
            TrainingError: no sequence in the trust region, a loss or gradient that is zero or not
                finite, or weights that did not move. The weights are as before.
        """
        if not any(row.has_signal for row in rows):
            raise NoSignalError(f"none of the {len(rows)} rows has an advantage other than zero")
        causal_lm.check_vocabulary(self._causal_lm, rows)
        gradient = self._sum_gradients(rows)
        started = time.perf_counter()
        grad_norm = self._finish_gradient(gradient)
        parameter_change = self._update()
        stats = gradient.stats
        return StepReceipt(
            num_rows=len(rows),
            num_dropped_sequences=stats.num_dropped_sequences,
            num_row_tokens=sum(len(row.token_ids) for row in rows),
            num_tokens=gradient.num_tokens,
            trained_tokens=stats.num_tokens,
            num_dropped_tokens=stats.num_dropped_tokens,
            num_unknown_tokens=stats.num_unknown_tokens,
            nonzero_advantage_share=stats.num_nonzero_advantages / stats.num_tokens,
            loss=gradient.loss_sum / stats.num_tokens,
            grad_norm=grad_norm,
            parameter_change=parameter_change,
            kl_sampler_trainer=stats.k3_sum / stats.num_known_tokens,
            logprob_gap=stats.gap_sum / stats.num_known_tokens,
            is_weight_mean=stats.weight_sum / stats.num_tokens,
            is_weight_max=stats.weight_max,
            is_clipped_share=stats.num_clipped_tokens / stats.num_tokens,
            kl_reference=(
                stats.reference_k3_sum / stats.num_tokens if self.config.kl_coefficient else None
            ),
            forward_s=gradient.forward_s,
            backward_s=gradient.backward_s,
            optimizer_s=time.perf_counter() - started,
            peak_memory_mib=_peak_memory_mib(self._device),
        )

    @torch.no_grad()
    def effect(self) -> Effect | None:
        """Say whether rewarded answers are likelier than before; one forward pass.

        Returns:
            None where no step had a rewarded token.
        """
        if self._watched is None:
            return None
        batch, before_N = self._watched
        return effect_of(batch, before_N, self.trainer_logprobs(batch))

    def trainer_logprobs(self, batch: MicroBatch) -> Tensor:
        """Return float32 [N], each trained token's log-probability under the current weights."""
        return causal_lm.logprobs(self._causal_lm, batch)

    @torch.no_grad()
    def _ref_logprobs(self, batch: MicroBatch) -> Tensor:
        """Return float32 [N], log-probabilities under the weights the KL is measured from."""
        if self.config.kl_reference == "base":
            with self._model.disable_adapter():
                return self.trainer_logprobs(batch)
        own = [parameter.data for parameter in self._parameters]
        try:
            for parameter, start in zip(self._parameters, self._start, strict=True):
                parameter.data = start
            return self.trainer_logprobs(batch)
        finally:
            for parameter, data in zip(self._parameters, own, strict=True):
                parameter.data = data

    def save(self, folder: Path) -> None:
        """Write the adapter into an existing, empty folder; making it durable is not done here."""
        save_adapter(self._model, folder, self.config, base_name=self._base_name)

    def save_moments(self, folder: Path) -> None:
        """Write the optimizer's moments beside the adapter folder that ``resume_from`` will name.

        Call it before the folder gets its name: then a folder that is there can be resumed from.
        """
        moments.save(moments_path(folder), self._optimizer, self._named_parameters())

    def _named_parameters(self) -> dict[str, Tensor]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    def _sum_gradients(self, rows: Sequence[TrainingRow]) -> "_SummedGradient":
        """Run every micro-batch forward and backward; gradients of the loss *sums* add up."""
        self._optimizer.zero_grad(set_to_none=True)
        stats, num_tokens, loss_sum, forward_s, backward_s = LossStats(), 0, 0.0, 0.0, 0.0
        ids = [row.read_ids for row in rows]
        for index in pack(ids, max_tokens=self.config.tokens_per_microbatch):
            started = time.perf_counter()
            batch = microbatches.collate([rows[i] for i in index], self._device)
            logprobs_N = self.trainer_logprobs(batch)
            if self._watched is None and is_rewarded(batch).any():
                self._watched = batch, logprobs_N.detach()
            loss, batch_stats = policy_loss(
                logprobs_N,
                batch.sampler_logprobs_N,
                batch.advantages_N,
                batch.row_N,
                num_sequences=batch.num_rows,
                config=self.config,
                ref_logprobs_N=self._ref_logprobs(batch) if self.config.kl_coefficient else None,
            )
            num_tokens += batch.num_tokens
            loss_sum += float(loss.detach())
            stats += batch_stats
            forward_ended = time.perf_counter()
            loss.backward()  # type: ignore[no-untyped-call]
            # Or its graph stands beside the next micro-batch's while that one grows.
            del loss, logprobs_N
            forward_s += forward_ended - started
            backward_s += time.perf_counter() - forward_ended
        return _SummedGradient(
            stats=stats,
            num_tokens=num_tokens,
            loss_sum=loss_sum,
            forward_s=forward_s,
            backward_s=backward_s,
        )

    def _finish_gradient(self, gradient: "_SummedGradient") -> float:
        """Make the gradient that of the mean over kept tokens; check, clip, return its norm.

        The number of kept tokens of the *whole step* is known only after the last micro-batch, so
        gradients are summed first and divided once: how rows are cut does not matter.
        """
        stats = gradient.stats
        if stats.num_tokens == 0:
            raise TrainingError(
                f"all {stats.num_sequences} sequences are outside the trust region (mean gap "
                f"{stats.gap_sum / max(stats.num_known_tokens, 1):.3f} nats a token, limit "
                f"{self.config.max_sequence_gap:g}): these weights did not sample them"
            )
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.div_(stats.num_tokens)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.config.max_grad_norm))
        if not (math.isfinite(gradient.loss_sum) and math.isfinite(norm)):
            raise TrainingError(
                f"loss ({gradient.loss_sum}) and gradient norm ({norm}) must be finite"
            )
        if norm == 0.0:
            raise TrainingError("the gradient is zero although advantages are not")
        return norm

    def _update(self) -> float:
        """Let AdamW move the weights; return by how much (L2)."""
        before = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer.step()
        changes = [
            (parameter.detach() - old).norm()
            for parameter, old in zip(self._parameters, before, strict=True)
        ]
        change = float(torch.stack(changes).norm())
        if change == 0.0:
            raise TrainingError(
                f"the weights did not move (learning rate {self.config.learning_rate:g})"
            )
        return change


@dataclass(frozen=True, kw_only=True, slots=True)
class _SummedGradient:
    """What the micro-batches of one step added up to, beside the parameters' ``grad``."""

    stats: LossStats
    num_tokens: int
    loss_sum: float
    forward_s: float
    backward_s: float


def _peak_memory_mib(device: torch.device) -> float:
    """Return the peak memory of the device, or of this process (Linux counts it in KiB)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
