"""Recorded episodes of many turns, trained by the real trainer on a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learner.gate import GateConfig, Verdict, compare
from learner.live_proof import compare_changes, judge
from learner.microbatches import collate
from learner.rows import TrainingRow
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from learner.trees import rows_of_tree
from tests.learner.test_live_cycle import two_turns
from tests.tiny_model import save_tiny_model

CPU = torch.device("cpu")
GOOD, BAD = 40, 41


def row_of(number: int) -> TrainingRow:
    """Return an episode as a row: good ones, of odd numbers, sampled one token, bad ones another.

    Its outcome is half a point above or below what was expected.
    """
    is_good = number % 2 == 1
    calls = two_turns(number, GOOD if is_good else BAD)
    [row] = rows_of_tree(calls, group_id=f"live-{number}", advantage=0.5 if is_good else -0.5).rows
    return row


def logprobs(trainer: Trainer, row: TrainingRow) -> list[float]:
    """Return what the trained weights make of a row's sampled tokens."""
    found: list[float] = trainer.trainer_logprobs(collate([row], CPU)).detach().tolist()
    return found


def sampled_by(trainer: Trainer, row: TrainingRow) -> TrainingRow:
    """Return the row with the log-probabilities that these weights would have reported."""
    values = iter(logprobs(trainer, row))
    known = tuple(next(values) if is_sampled else None for is_sampled in row.loss_mask)
    return replace(row, sampler_logprobs=known)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


def test_training_on_recorded_episodes_moves_others_like_them_the_right_way(
    model_dir: Path,
) -> None:
    config = TrainerConfig(rank=4, alpha=8, dtype="float32", learning_rate=1e-2)
    trainer = Trainer(model_dir, config)
    rows = [sampled_by(trainer, row_of(number)) for number in range(8)]
    heldout = [row_of(number) for number in range(8, 24)]
    before = [logprobs(trainer, row) for row in heldout]
    for _ in range(3):
        receipt = trainer.step(rows)
    assert receipt.trained_tokens == 8 * 4, "two turns of two tokens; the tool's two are not"
    changes = [
        sum(logprobs(trainer, row)) / len(old) - sum(old) / len(old)
        for row, old in zip(heldout, before, strict=True)
    ]
    advantages = [max(row.advantages) + min(row.advantages) for row in heldout]
    assert set(advantages) == {0.5, -0.5}
    gate = GateConfig(num_bootstrap=500)
    found = compare_changes(changes, advantages, num_dropped=0, config=gate)
    report = judge(compare({}, {}, {}, config=gate), found, gate)
    assert report.verdict is Verdict.PROMOTE, report.reasons
    assert found.gain_low is not None
    assert found.gain_low > 0
