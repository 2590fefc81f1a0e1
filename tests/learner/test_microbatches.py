import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learner.microbatches import collate, cut
from tests.learner.training_rows import make_row


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 100))
def test_every_row_is_in_one_microbatch_within_the_budget(
    lengths: list[int], max_tokens: int
) -> None:
    batches = cut(lengths, max_tokens=max_tokens)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= max_tokens
    longest = [max(lengths[i] for i in batch) for batch in batches]
    assert longest == sorted(longest, reverse=True)


def test_rows_of_similar_length_go_together() -> None:
    # longest first: 9 alone (9 * 2 > 12), then 4 and 4 and 3 (4 * 3 = 12)
    assert cut([4, 9, 3, 4], max_tokens=12) == [[1], [0, 3, 2]]


def test_collate_lists_trained_tokens_row_by_row() -> None:
    long = make_row(seed=0, advantage=0.5, num_prompt=3, num_completion=2)
    short = make_row(seed=1, advantage=-0.5, num_prompt=1, num_completion=1)
    batch = collate([long, short], torch.device("cpu"))
    assert batch.token_ids_BT.tolist() == [list(long.token_ids), [*short.token_ids, 0, 0, 0]]
    assert batch.row_N.tolist() == [0, 0, 1]
    assert batch.position_N.tolist() == [3, 4, 1]
    assert batch.advantages_N.tolist() == [0.5, 0.5, -0.5]
    assert (batch.num_rows, batch.num_tokens) == (2, 7)


def test_unknown_logprob_is_nan_and_never_zero() -> None:
    row = make_row(seed=0, advantage=0.5, num_prompt=1, num_completion=2)
    object.__setattr__(row, "sampler_logprobs", (None, None, -0.5))
    batch = collate([row], torch.device("cpu"))
    assert math.isnan(batch.sampler_logprobs_N[0])
    assert batch.sampler_logprobs_N[1] == pytest.approx(-0.5)


def test_end_of_sequence_equal_to_padding_is_trained() -> None:
    row = make_row(seed=0, advantage=0.5, num_prompt=1, num_completion=2)
    object.__setattr__(row, "token_ids", (5, 0, 0))  # 0 is what shorter rows are padded with
    batch = collate([row], torch.device("cpu"))
    assert batch.position_N.tolist() == [1, 2]
