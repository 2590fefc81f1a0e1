from typing import Any

from learner.receipts import cycle_receipt
from learner.rows import RowBatch, SkipReason


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
