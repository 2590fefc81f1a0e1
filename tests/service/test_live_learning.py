"""An agent program's sessions, which cannot be replayed, teach; a person decides on what comes."""

import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until
from tests.service.test_learning import LEARNER, learn
from tests.tiny_model import VOCAB_SIZE

SETTINGS = {
    "learner": LEARNER | {"min_live_episodes": 8, "live_episodes_per_step": 6},
    "promotion": {"mode": "auto", "min_tasks": 20},
}


@pytest.fixture
def service(tiny_model, tmp_path):
    with (
        FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model)) as engine,
        ServiceThread(tmp_path, engine.url, SETTINGS) as service,
    ):
        yield service


def work(service: ServiceThread, number: int, value: float, *, num_turns: int = 2) -> str:
    """Have a program of its own work in turns and say how it went; return the episode."""
    body = ask(f"mend build {number}", metadata={"task": "mend"})
    path = f"/s/agent-{number}/v1/chat/completions"
    answer = service.http.post(path, json=body)
    for _ in range(num_turns - 1):
        said = answer.json()["choices"][0]["message"]
        told = {"role": "user", "content": f"the build says {number}"}
        body |= {"messages": [*body["messages"], said, told]}
        answer = service.http.post(path, json=body)
    episode = answer.headers["x-denizen-episode-id"]
    service.http.post("/v1/feedback", json={"episode_id": episode, "value": value})
    return episode


def can_learn(service: ServiceThread) -> bool:
    """Say whether nothing is missing before a cycle."""
    skills = service.http.get("/v1/status").json()["skills"]
    return bool(skills) and skills[0]["missing"] == []


def test_sessions_of_a_program_teach_and_a_person_decides(service):
    def skills() -> list[dict]:
        return service.http.get("/v1/status").json()["skills"]

    for number in range(5):
        work(service, number, float(number % 2))
    wait_until(lambda: skills() and "5 of 8 graded" in "; ".join(skills()[0]["missing"]))
    episodes = [work(service, number, float(number % 2)) for number in range(5, 16)]
    wait_until(lambda: can_learn(service))
    cycle = learn(service)
    assert cycle["state"] == "proposed", cycle["end_reason"]
    assert "not replayable: a person decides" in cycle["end_reason"]
    assert cycle["receipt"]["live_rows"] > 0
    assert cycle["receipt"]["trained_tokens"] > 0
    assert cycle["gate"]["live"]["num_episodes"] + cycle["gate"]["live"]["num_dropped"] > 0
    assert service.http.get("/v1/status").json()["live"] == "base"
    taught = [service.http.get(f"/v1/episodes/{one}").json() for one in episodes]
    assert all(len(one["calls"]) == 2 for one in taught)
    decided = service.http.post(f"/v1/adapters/{cycle['candidate']}/approve", json={})
    assert decided.status_code == 200, decided.text
    assert service.http.get("/v1/status").json()["live"] == cycle["candidate"]
