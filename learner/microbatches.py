"""A step's rows as tensors: one micro-batch is one forest, with nothing in it twice and no padding.

Masks come from the rows' lengths and loss masks alone, never from token values: a padding id that
equals the end-of-sequence id is a common way to never learn to stop.

Axes: ``T`` tokens of a micro-batch's forest, ``N`` trained tokens of its rows, one row after
another, ``U`` places in the forest that predict a trained token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner.forest_layout import Layout, layout
from learner.forests import plant
from learner.rows import TrainingRow


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Rows that are computed together."""

    token_ids_T: Tensor  # int64
    position_T: Tensor  # int64, place in the row
    layout: Layout
    predictor_U: Tensor  # int64, places in the forest, ascending
    state_N: Tensor  # int64 into U: what a trained token is predicted from
    target_N: Tensor  # int64, the trained token itself
    row_N: Tensor  # int64, which row a trained token stands in
    sampler_logprobs_N: Tensor  # float32, NaN where unknown
    advantages_N: Tensor  # float32
    num_rows: int

    @property
    def num_tokens(self) -> int:
        """Tokens that are computed: T."""
        return len(self.token_ids_T)


def collate(rows: Sequence[TrainingRow], device: torch.device) -> MicroBatch:
    """Plant the rows and list their trained tokens."""
    forest = plant([row.read_ids for row in rows])
    trained = [
        (row_index, position)
        for row_index, row in enumerate(rows)
        for position, is_trained in enumerate(row.loss_mask)
        if is_trained
    ]
    predictors = [forest.paths[row][position - 1] for row, position in trained]
    places = sorted(set(predictors))
    state_of = {place: state for state, place in enumerate(places)}
    logprobs = [rows[row].sampler_logprobs[position] for row, position in trained]
    known = [float("nan") if logprob is None else logprob for logprob in logprobs]
    advantages = [rows[row].advantages[position] for row, position in trained]
    return MicroBatch(
        token_ids_T=torch.tensor(forest.token_ids, device=device),
        position_T=torch.tensor(forest.positions, device=device),
        layout=layout(forest.segments, device),
        predictor_U=torch.tensor(places, device=device),
        state_N=torch.tensor([state_of[place] for place in predictors], device=device),
        target_N=torch.tensor([rows[r].token_ids[p] for r, p in trained], device=device),
        row_N=torch.tensor([row for row, _ in trained], device=device),
        sampler_logprobs_N=torch.tensor(known, dtype=torch.float32, device=device),
        advantages_N=torch.tensor(advantages, dtype=torch.float32, device=device),
        num_rows=len(rows),
    )
