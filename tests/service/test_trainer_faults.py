"""A training process that dies is a failed run, never an outage.

One killed in mid-step is in ``test_learning.py``; how the parent names each end, in
``tests/learner/test_training_process.py``.
"""

import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from assembly import parts
from learner import runner
from learner.training_process import TrainingProcess
from tests.running import ServiceThread, wait_until
from tests.service.test_learning import LEARNER, right_answer, tasks
from tests.service.versions import chat, live

PAUSE_S = 0.6
LEARNS_AT_ONCE = LEARNER | {"enabled": True, "check_interval_s": 0.1, "min_new_signal": 1}


def dying(program: str) -> type[TrainingProcess]:
    """Return a training process that runs ``program`` in the worker's place."""

    class Dying(TrainingProcess):
        def __init__(self, **options) -> None:
            super().__init__(**options)
            self._command = [sys.executable, "-c", program]

    return Dying


@pytest.fixture(
    params=[
        ("raise SystemExit(137)", "137 (killed, likely out of memory)"),
        ("raise MemoryError('DefaultCPUAllocator: out of memory')", "out of memory"),
    ],
    ids=["exits with 137", "raises out of memory"],
)
def reason(request, monkeypatch) -> str:
    """Let every training process die; return what is to be said of it."""
    program, reason = request.param
    monkeypatch.setattr(parts, "TrainingProcess", dying(program))
    monkeypatch.setattr(runner, "FIRST_PAUSE_S", PAUSE_S)
    return reason


@pytest.fixture
def service(reason, engine, tmp_path: Path) -> Iterator[ServiceThread]:
    engine.answer = right_answer
    with ServiceThread(tmp_path, engine.url, {"learner": LEARNS_AT_ONCE}) as service:
        yield service


def test_a_trainer_that_dies_fails_its_cycle_and_the_next_one_waits_longer(service, reason):
    """P-14: chat goes on, the run says why it failed, the pause before the next one doubles."""

    def cycles() -> list[dict]:
        newest_first = service.http.get("/v1/cycles").json()["data"]
        return [cycle for cycle in reversed(newest_first) if cycle["ended_at"]]

    answers = []

    def three_have_ended() -> bool:
        answers.append(chat(service, "2 * 3 = ?").status_code)
        return len(cycles()) >= 3

    service.http.post("/v1/tasks", json={"tasks": tasks(60)}).raise_for_status()
    wait_until(three_have_ended, 60)
    first, second, third = cycles()[:3]
    assert {cycle["state"] for cycle in (first, second, third)} == {"failed"}
    assert all(reason in cycle["end_reason"] for cycle in (first, second, third))
    assert seconds(first, second) >= PAUSE_S
    assert seconds(second, third) >= 2 * PAUSE_S
    assert set(answers) == {200}
    assert live(service) == "base"
    assert service.http.get("/v1/adapters").json()["data"] == []
    assert service.http.get("/ready").status_code == 200


def seconds(earlier: dict, later: dict) -> float:
    """Return the time from one cycle's end to the next one's start."""
    ended, began = (
        datetime.fromisoformat(text) for text in (earlier["ended_at"], later["created_at"])
    )
    return (began - ended).total_seconds()
