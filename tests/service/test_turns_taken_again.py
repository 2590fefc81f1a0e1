"""Turns of a program's sessions are taken again, and teach where a trusted teacher ranks them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import SecretStr

from assembly import jobs, parts
from graders.outcome import merge
from memory.grade_rows import set_grades
from memory.types import Grade, GradeKind
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, wait_until
from tests.service.quick_training import QuickTraining
from tests.service.test_learning import LEARNER
from tests.service.test_live_learning import work
from tests.tiny_model import VOCAB_SIZE

KEY = "sk-proj-4tQ9w2LmZ7"
SCORES = "score.1.1/rubric_task.1/3x0.7/teacher-1"
ANSWER = re.compile(r"Answer (\w+):\n<<<(data-\w+)\n(.*?)\n\2>>>", re.DOTALL)
LEARN = LEARNER | {
    "min_live_episodes": 8,
    "live_episodes_per_step": 6,
    "next_turns_per_step": 2,
    "next_turn_group_size": 3,
}


def shortest_first(_model: str, messages: Sequence[Mapping[str, Any]]) -> str:
    """Rank as a judge that likes it short."""
    ticket = re.search(r'"ticket": "([0-9a-f]+)"', str(messages[0]["content"]))
    assert ticket is not None
    shown = ANSWER.findall(str(messages[1]["content"]))
    ranking = [id for id, _, text in sorted(shown, key=lambda one: len(one[2]))]
    return json.dumps({"ticket": ticket[1], "reason": "shorter", "ranking": ranking}) + "\n"


@pytest.fixture
def teacher():
    with FakeEngine(base_name="teacher-1", api_key=KEY, answer=shortest_first) as teacher:
        yield teacher


def judge(service: ServiceThread, episode_id: str, value: float) -> None:
    """Score an episode as the teacher does: beside the grades that are there."""
    store = service.parts.store
    grade = Grade(kind=GradeKind.JUDGE, grader="judge", version=SCORES, value=value)
    its, there = store.episodes.get(episode_id), store.episodes.grades(episode_id)
    store.database.write(lambda db: set_grades(db, its, [*there, grade], merge([*there, grade])))


def test_recorded_turns_are_taken_again_ranked_by_the_teacher_and_trained(
    tiny_model, tmp_path, teacher, monkeypatch
):
    monkeypatch.setattr(jobs, "TRUST_INTERVAL_S", 3_600.0)
    monkeypatch.setattr(parts, "TrainingProcess", QuickTraining)
    of_teacher = {
        "base_url": f"{teacher.url}/v1",
        "model": "teacher-1",
        "api_key": SecretStr(KEY),
    }
    settings = {
        "learner": LEARN,
        "promotion": {"mode": "propose", "min_tasks": 20},
        "teacher": of_teacher,
        "graders": {"min_canaries": 0, "min_pairs": 10},
    }
    with (
        FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model)) as engine,
        ServiceThread(tmp_path, engine.url, settings) as service,
    ):
        http = service.http
        episodes = [work(service, number, float(number % 2)) for number in range(16)]
        wait_until(lambda: all(http.get(f"/v1/episodes/{e}").json()["outcome"] for e in episodes))
        wait_until(lambda: http.get("/v1/status").json()["skills"][0]["missing"] == [])
        for number, episode in enumerate(episodes):
            judge(service, episode, float(number % 2))
        service.parts.trust.refresh()
        started = http.post("/v1/cycles", json={})
        assert started.status_code == 202, started.text
        path = f"/v1/cycles/{started.json()['id']}"
        wait_until(lambda: http.get(path).json()["state"] != "running", 120)
        cycle = http.get(path).json()
        assert cycle["state"] == "proposed", cycle["end_reason"]
        assert "not replayable: a person decides" in cycle["end_reason"]
        account = cycle["receipt"]["next_turns"]
        assert account["num_tried"] == account["num_prefixes"] > 0
        assert cycle["receipt"]["next_turn_rows"] == 3 * account["num_tried"]
        assert all(step["receipt"]["next_turns"]["why_not"] is None for step in cycle["steps"])
        asked = [json.dumps(one.body) for one in teacher.requests if one.body]
        assert len(asked) == 3 * account["num_tried"], "three votes a group"
        assert all("What happened next, when this turn was taken then" in one for one in asked)
        taken = [one.body for one in engine.requests if one.body and one.body.get("n") == 3]
        recorded = [http.get(f"/v1/episodes/{one}").json()["calls"] for one in episodes]
        prompts = [call["prompt_token_ids"] for calls in recorded for call in calls]
        assert all(one["prompt"] in prompts for one in taken), "token for token"
        practised = http.get("/v1/episodes?source=practice&limit=100").json()["data"]
        again = [http.get(f"/v1/episodes/{one['id']}").json() for one in practised]
        values = {one["outcome"]["value"] for one in again if one["grades"][0]["evidence"]}
        assert values == {1.0, 0.25}, "the two longer ones are of one length: a tie"
        source = next(
            number
            for number, calls in enumerate(recorded)
            if again[0]["grades"][0]["evidence"]["taken_again"] in {call["id"] for call in calls}
        )
        told = http.post("/v1/erase", json={"episode": episodes[source]}).json()
        assert [one["version"] for one in told["tainted"]] == [cycle["candidate"]]
        assert http.get(f"/v1/episodes/{again[0]['id']}").status_code == 404


def test_without_a_teacher_nothing_is_taken_again(service):
    assert "next_turns" not in json.dumps(service.http.get("/v1/status").json())
    assert not service.parts._takes_turns_again
