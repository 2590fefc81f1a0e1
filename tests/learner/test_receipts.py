from typing import Any

import pytest

from graders.outcome import merge
from learner.receipts import cycle_receipt, practice_receipt
from learner.rollouts import Trial
from learner.rows import RowBatch, SkipReason
from memory.types import Grade, GradeKind
from tests import records


def step(*, num_truncated: int, reward_mean: float | None, **trained: Any) -> dict[str, Any]:
    batch = RowBatch(
        rows=(),
        num_groups=2,
        num_rollouts=8,
        num_trained_groups=1,
        num_truncated=num_truncated,
        skipped_rollouts={SkipReason.ZERO_SIGNAL: 4},
    )
    practised = {"rollouts_by_provenance": {"check": 8}, "reward_mean": reward_mean}
    seconds = {"seconds_sampling": 1.0, "seconds_training": 2.0}
    return batch.to_json() | practised | seconds | trained


def test_a_cycle_sums_up_what_its_steps_count() -> None:
    steps = [
        step(num_truncated=3, reward_mean=0.25, trained_tokens=40),
        step(num_truncated=0, reward_mean=0.5),
        step(num_truncated=2, reward_mean=0.75, trained_tokens=2, rehearsal_rows=5),
    ]
    found = cycle_receipt(steps)
    assert found["num_truncated"] == 5
    assert (found["num_steps"], found["num_trained_steps"]) == (3, 2)
    assert (found["num_rollouts"], found["skipped_rollouts"]) == (24, {"zero_signal": 12})
    assert (found["trained_tokens"], found["rehearsal_rows"]) == (42, 5)
    assert (found["reward_first"], found["reward_last"]) == (0.25, 0.75)
    assert (found["seconds_sampling"], found["seconds_training"]) == (3.0, 6.0)


def test_p32_means_are_over_the_rewards_there_are() -> None:
    def tried(*rewards: float | None) -> list[Trial]:
        reasons = (None if reward is not None else "no number" for reward in rewards)
        grades = [
            Grade(kind=GradeKind.CHECK, grader="numeric", version="1", value=r, unscored_reason=why)
            for r, why in zip(rewards, reasons, strict=True)
        ]
        task, call = records.task(), records.call()
        return [Trial(task=task, call=call, grade=one, outcome=merge([one])) for one in grades]

    found = practice_receipt([tried(1.0, None, 0.0), tried(1.0, None), tried(None, None)])
    # three rewards, 1 0 1: 2/3 and sqrt(2/9); only the first group has two to compare
    assert found["reward_mean"] == pytest.approx(2 / 3)
    assert found["reward_std"] == pytest.approx((2 / 9) ** 0.5)
    assert found["frac_reward_zero_std"] == 0.0
    assert practice_receipt([tried(None)])["reward_mean"] is None
