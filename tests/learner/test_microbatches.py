import dataclasses
import math

import pytest
import torch

from learner.microbatches import collate
from learner.rows import TrainingRow
from tests.learner.training_rows import make_row

CPU = torch.device("cpu")


def short_row(**changes: object) -> TrainingRow:
    row = make_row(seed=0, advantage=0.5, num_prompt=1, num_completion=2)
    return dataclasses.replace(row, **changes)


def test_collate_lists_trained_tokens_row_by_row() -> None:
    long = make_row(seed=0, advantage=0.5, num_prompt=3, num_completion=2)
    short = make_row(seed=1, advantage=-0.5, num_prompt=1, num_completion=1)
    batch = collate([long, short], CPU)
    assert batch.num_tokens == 4 + 1  # nothing is predicted from a row's last token
    assert batch.row_N.tolist() == [0, 0, 1]
    assert batch.target_N.tolist() == [*long.token_ids[3:], short.token_ids[1]]
    predictors = batch.predictor_U[batch.state_N]
    assert batch.token_ids_T[predictors].tolist() == [*long.token_ids[2:4], short.token_ids[0]]
    assert batch.position_T[predictors].tolist() == [2, 3, 0]
    assert batch.advantages_N.tolist() == [0.5, 0.5, -0.5]
    assert batch.num_rows == 2


def test_first_tokens_of_a_group_are_predicted_from_one_state() -> None:
    first = make_row(seed=0, advantage=0.5, num_prompt=20, num_completion=2)
    second = dataclasses.replace(first, token_ids=(*first.token_ids[:20], 7, 8))
    batch = collate([first, second], CPU)
    assert batch.num_tokens == 20 + 2
    assert batch.state_N[0] == batch.state_N[2]
    assert len(batch.predictor_U) == 3


def test_unknown_logprob_is_nan_and_never_zero() -> None:
    batch = collate([short_row(sampler_logprobs=(None, None, -0.5))], CPU)
    assert math.isnan(batch.sampler_logprobs_N[0])
    assert batch.sampler_logprobs_N[1] == pytest.approx(-0.5)


def test_end_of_sequence_equal_to_padding_is_trained() -> None:
    batch = collate([short_row(token_ids=(5, 0, 0))], CPU)
    assert batch.target_N.tolist() == [0, 0]
