"""Cutting a step's rows into micro-batches and laying each out as tensors.

Masks come from the rows' lengths and loss masks alone, never from token values: a padding id that
equals the end-of-sequence id is a common way to never learn to stop.

Axes: ``B`` rows of a micro-batch, ``T`` tokens of its longest row, ``N`` its trained tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.rows import TrainingRow


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Rows padded to one length on the right, and their trained tokens one after another."""

    token_ids_BT: Tensor  # int64; padding is 0 and never looked at
    row_N: Tensor  # int64, which row a trained token stands in
    position_N: Tensor  # int64, where it stands
    sampler_logprobs_N: Tensor  # float32, NaN where unknown
    advantages_N: Tensor  # float32
    num_rows: int
    num_tokens: int  # without padding


def cut(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Cut rows into micro-batches of similar length within a token budget.

    Longest first, so that a step that will not fit into memory fails at its start. A row longer
    than the budget is a micro-batch of its own.

    Args:
        lengths: tokens of each row.
        max_tokens: of a micro-batch, padding included.

    Returns:
        Row indices, each exactly once.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # The first row of a micro-batch is its longest: it sets the padded width.
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def collate(rows: Sequence[TrainingRow], device: torch.device) -> MicroBatch:
    """Pad rows to one length and list their trained tokens."""
    longest = max(len(row.token_ids) for row in rows)
    padded = [list(row.token_ids) + [0] * (longest - len(row.token_ids)) for row in rows]
    trained = [
        (row_index, position)
        for row_index, row in enumerate(rows)
        for position, is_trained in enumerate(row.loss_mask)
        if is_trained
    ]
    logprobs = [rows[row].sampler_logprobs[position] for row, position in trained]
    known = [float("nan") if logprob is None else logprob for logprob in logprobs]
    advantages = [rows[row].advantages[position] for row, position in trained]
    return MicroBatch(
        token_ids_BT=torch.tensor(padded, device=device),
        row_N=torch.tensor([row for row, _ in trained], device=device),
        position_N=torch.tensor([position for _, position in trained], device=device),
        sampler_logprobs_N=torch.tensor(known, dtype=torch.float32, device=device),
        advantages_N=torch.tensor(advantages, dtype=torch.float32, device=device),
        num_rows=len(rows),
        num_tokens=sum(len(row.token_ids) for row in rows),
    )
