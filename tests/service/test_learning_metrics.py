"""What ``/metrics`` says of a cycle is what its receipts say."""

import pytest

from assembly import parts
from tests.running import ServiceThread
from tests.service.quick_training import QuickTraining
from tests.service.test_learning import LEARNER, learn, right_answer, tasks


def scraped(service: ServiceThread) -> dict[str, float]:
    lines = service.http.get("/metrics").text.splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_metrics_show_the_newest_step_and_count_cycles(engine, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(parts, "TrainingProcess", QuickTraining)
    engine.answer = right_answer
    with ServiceThread(tmp_path, engine.url, {"learner": LEARNER}) as service:
        before = scraped(service)
        service.http.post("/v1/tasks", json={"tasks": tasks(60)})
        cycle = learn(service)
        after = scraped(service)

    def gained(name: str) -> float:
        return after.get(name, 0.0) - before.get(name, 0.0)

    receipts = [step["receipt"] for step in cycle["steps"]]
    newest = receipts[-1]
    assert after["denizen_train_reward"] == newest["reward_mean"]
    assert after["denizen_train_frac_reward_zero_std"] == newest["frac_reward_zero_std"]
    assert after["denizen_train_completions_mean_length"] == newest["mean_completion_tokens"]
    assert after["denizen_train_step_time"] == newest["seconds"]
    assert after.get("denizen_train_grad_norm") == newest.get("grad_norm")
    assert "denizen_train_kl" not in after  # there is none in the loss
    num_trained = cycle["receipt"]["num_trained_steps"]
    assert gained('denizen_train_steps_total{result="trained"}') == num_trained
    num_others = len(receipts) - num_trained
    assert gained('denizen_train_steps_total{result="no_signal"}') == num_others
    assert gained("denizen_train_tokens_total") == cycle["receipt"]["trained_tokens"] > 0
    assert gained(f'denizen_cycles_total{{state="{cycle["state"]}"}}') == 1
    for phase in ("sampling", "training"):
        spent = gained(f'denizen_cycle_seconds_total{{phase="{phase}"}}')
        assert spent == pytest.approx(cycle["receipt"][f"seconds_{phase}"])
    for phase in ("scoring", "publishing"):
        assert gained(f'denizen_cycle_seconds_total{{phase="{phase}"}}') > 0
