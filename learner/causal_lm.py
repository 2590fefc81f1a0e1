"""What a causal model says of the tokens of a micro-batch, and whether it can be asked that way.

Only the decoder is transformers' own; its attention is that over a forest, and the vocabulary
projection is of trained tokens alone.

Axes: ``T`` tokens of a micro-batch's forest, ``N`` its trained tokens, ``D`` hidden units, ``V``
vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from learner import tree_attention
from learner.errors import RowError, TrainingError
from learner.microbatches import MicroBatch, collate
from learner.projection import token_logprobs
from learner.rows import TrainingRow

PROBE_TOKENS = 16
MAX_PROBE_GAP = 1.0
"""Nats a token: in bfloat16 the packaged model is 0.33 off on tokens as unlikely as these, in
float32 less than 0.001."""


def logprobs(model: Any, batch: MicroBatch) -> Tensor:
    """Return float32 [N], the log-probability of each trained token under the current weights."""
    decoder = getattr(model, model.base_model_prefix)
    hidden_1TD = decoder(
        input_ids=batch.token_ids_T[None],
        position_ids=batch.position_T[None],
        use_cache=False,
        forest=batch.layout,
    ).last_hidden_state
    return token_logprobs(
        hidden_1TD[0].index_select(0, batch.predictor_U),
        model.get_output_embeddings().weight,
        batch.state_N,
        batch.target_N,
    )


@torch.no_grad()
def check(model: Any, *, name: str) -> None:
    """Refuse a model whose log-probabilities are computed otherwise, by comparing a few.

    Raises:
        TrainingError: it scales or caps its logits, or attends otherwise.
    """
    ids = tuple(range(PROBE_TOKENS))
    probe = TrainingRow(
        group_id="probe",
        token_ids=ids,
        loss_mask=(False, *(True for _ in ids[1:])),
        sampler_logprobs=(None,) * len(ids),
        advantages=(0.0,) * len(ids),
    )
    device = model.get_input_embeddings().weight.device
    found_N = logprobs(model, collate([probe], device))
    ids_1T = torch.tensor([ids], device=device)
    model.set_attn_implementation("sdpa")
    logits_TV = model(input_ids=ids_1T, use_cache=False).logits[0].float()
    model.set_attn_implementation(tree_attention.NAME)
    expected_N = logits_TV[:-1].log_softmax(-1).gather(1, ids_1T[0, 1:, None]).squeeze(1)
    gap = float((found_N - expected_N).abs().mean())
    if not gap <= MAX_PROBE_GAP:
        raise TrainingError(
            f"{name} computes log-probabilities in a way that is not supported: those of a probe "
            f"are {gap:.3f} nats off on average"
        )


def check_vocabulary(model: Any, rows: Sequence[TrainingRow]) -> None:
    """Refuse foreign token ids: an index error deep in torch would not say which row.

    Raises:
        RowError: a token id lies outside the model's vocabulary.
    """
    num_tokens = model.get_input_embeddings().weight.shape[0]
    for row in rows:
        if (largest := max(row.token_ids)) >= num_tokens:
            raise RowError(
                f"row of group {row.group_id!r} has token id {largest}, "
                f"the model knows {num_tokens} tokens"
            )
