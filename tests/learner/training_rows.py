"""Rows for the tiny model: log-probabilities near those of an untrained one."""

import math
import random

from learner.rows import TrainingRow
from tests.tiny_model import VOCAB_SIZE

UNIFORM = -math.log(VOCAB_SIZE)
"""What a tiny random model gives any token, to about 0.1."""


def make_row(
    *, seed: int, advantage: float, num_prompt: int = 5, num_completion: int = 4
) -> TrainingRow:
    """Return a row of random tokens."""
    rng = random.Random(seed)
    num_tokens = num_prompt + num_completion
    return TrainingRow(
        group_id="g",
        token_ids=tuple(rng.randrange(VOCAB_SIZE) for _ in range(num_tokens)),
        loss_mask=(False,) * num_prompt + (True,) * num_completion,
        sampler_logprobs=(None,) * num_prompt + (UNIFORM,) * num_completion,
        advantages=(0.0,) * num_prompt + (advantage,) * num_completion,
    )


def make_rows() -> list[TrainingRow]:
    """Return eight rows of different lengths."""
    return [
        make_row(
            seed=i, advantage=(0.5, -0.5)[i % 2], num_prompt=3 + i, num_completion=1 + i * 3 % 7
        )
        for i in range(8)
    ]
