"""A training process that runs out of memory is a failed cycle, and no outage."""

import subprocess
import sys

import pytest

from tests.running import REPOSITORY, ServiceThread, wait_until
from tests.service.test_learning import LEARNER
from tests.service.versions import chat, live

LOADED = """
import learner.worker
[line] = [line for line in open("/proc/self/status") if line.startswith("VmData")]
print(line.split()[1])
"""
ROOM_MIB = 64
"""For the model, which takes less, and a step on 8 prompts of 1,800 tokens, which takes more."""


@pytest.fixture(scope="module")
def max_memory_mib() -> int:
    """Return what the libraries of the training process take, and a little more."""
    said = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=REPOSITORY, capture_output=True, check=True
    )
    return int(said.stdout) // 1024 + ROOM_MIB


def test_p14_out_of_memory_in_the_trainer_leaves_chat_at_200(engine, tmp_path, max_memory_mib):
    engine.answer = lambda weights, messages: f"let me see , {messages[-1]['content'].split()[0]}"
    learner = LEARNER | {"max_memory_mib": max_memory_mib, "tasks_per_step": 8}
    learner |= {"tokens_per_microbatch": 100_000}
    tasks = [
        {"prompt": f"{number} comes before" + " word" * 1_800, "reference": str(number)}
        for number in range(100, 160)
    ]
    with ServiceThread(tmp_path, engine.url, {"learner": learner}) as service:
        http = service.http
        http.post("/v1/tasks", json={"tasks": tasks}).raise_for_status()
        wait_until(lambda: all(t["skill_id"] for t in http.get("/v1/tasks").json()["data"]))
        started = http.post("/v1/cycles", json={})
        assert started.status_code == 202, started.text
        path, answers = f"/v1/cycles/{started.json()['id']}", []

        def has_ended() -> bool:
            answers.append(chat(service, "2 * 3 = ?").status_code)
            return http.get(path).json()["state"] != "running"

        wait_until(has_ended, 120)
        cycle = http.get(path).json()
        assert cycle["state"] == "failed"
        assert f"training ran out of memory of {max_memory_mib} MiB" in cycle["end_reason"]
        assert set(answers) == {200}
        assert http.get("/ready").status_code == 200
        assert http.get("/v1/adapters").json()["data"] == []
        assert live(service) == "base"
        assert not list((tmp_path / "work").glob("*"))
