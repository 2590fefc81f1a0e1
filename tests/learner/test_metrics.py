from dataclasses import fields
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from learner import metrics
from learner.metrics import OWN_NAMES, TRL_NAMES, NewestStep, figures
from learner.receipts import practice_receipt
from learner.rows import RowBatch, SkipReason
from learner.step_receipt import StepReceipt


def receipt(**changed: Any) -> dict[str, Any]:
    """A trained step's, of the records that make one up; every figure of training is 0.5."""
    batch = RowBatch(
        rows=(),
        num_groups=2,
        num_rollouts=6,
        num_trained_groups=1,
        num_truncated=1,
        skipped_rollouts={SkipReason.ZERO_SIGNAL: 2},
    )
    trained = {field.name: 0.5 for field in fields(StepReceipt)}
    times = {"seconds_sampling": 3.0, "seconds_training": 4.0, "seconds": 7.0}
    practised = dict.fromkeys(practice_receipt([]), 0.25)
    age = {"staleness_mean": 0.5, "staleness_max": 1}
    return batch.to_json() | practised | age | trained | times | changed


def shown(step: dict[str, Any]) -> dict[str, float]:
    """What a scrape shows of a step."""
    newest, registry = NewestStep(), CollectorRegistry()
    registry.register(newest)
    newest.values = figures(step)
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.split() for line in lines if not line.startswith("#"))
    }


def test_every_figure_of_a_trained_step_is_shown_with_a_slash_as_an_underscore() -> None:
    found = shown(receipt())
    assert found.keys() == {
        f"denizen_train_{name.replace('/', '_')}" for name in TRL_NAMES | OWN_NAMES
    }
    assert found["denizen_train_reward"] == 0.25
    assert found["denizen_train_completions_mean_length"] == 0.25
    assert found["denizen_train_completions_clipped_ratio"] == 0.25  # 1 of 6 - 2
    assert found["denizen_train_sampling_sampling_logp_difference_mean"] == 0.5
    assert found["denizen_train_step_time"] == 7.0


def test_what_a_step_did_not_measure_is_not_shown_as_zero() -> None:
    assert "denizen_train_kl" not in shown(receipt(kl_reference=None))
    nothing = receipt(num_rollouts=0, skipped_rollouts={}, reward_mean=None, reward_std=None)
    assert not shown(nothing).keys() & {
        "denizen_train_reward",
        "denizen_train_reward_std",
        "denizen_train_completions_clipped_ratio",
    }


def test_where_nothing_was_practised_the_reward_is_that_of_recorded_episodes() -> None:
    step = receipt(reward_mean=None, live={"reward_mean": 0.75})
    assert shown(step)["denizen_train_reward"] == 0.75


def test_time_is_counted_for_a_phase_that_fails() -> None:
    before = metrics.CYCLE_SECONDS.labels("a test")._value.get()
    with pytest.raises(ValueError, match="broken"), metrics.seconds_in("a test"):
        raise ValueError("broken")
    assert metrics.CYCLE_SECONDS.labels("a test")._value.get() > before
