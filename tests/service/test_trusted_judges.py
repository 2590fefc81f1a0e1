"""Judges, people and reactions through the whole service: who decides an outcome, and who is asked.

The judge's grades are put into the record as the judging part puts them there.
"""

import asyncio
from typing import Any

import pytest

from assembly import jobs
from graders.outcome import merge
from memory.grade_rows import set_grades
from memory.types import Grade, GradeKind
from tests.running import ServiceThread, ask, wait_until

CONFIG = {"graders": {"min_canaries": 0}}


@pytest.fixture
def service(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "TRUST_INTERVAL_S", 3_600.0)  # see ``look_again``
    with ServiceThread(tmp_path, engine.url, CONFIG) as service:
        yield service


def judge(service: ServiceThread, episode_id: str, value: float) -> None:
    """Grade an episode as a judge does: beside the grades that are there."""
    episode(service, episode_id)  # it is in the file
    store = service.parts.store
    grade = Grade(kind=GradeKind.JUDGE, grader="judge", version="1", value=value)
    its, there = store.episodes.get(episode_id), store.episodes.grades(episode_id)
    grades = [*there, grade]
    store.database.write(lambda db: set_grades(db, its, grades, merge(grades)))


def chat(service: ServiceThread, number: int, **metadata: Any) -> str:
    body = ask(f"say hello {number}") | {"metadata": {"task": "greetings", **metadata}}
    response = service.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.headers["x-denizen-episode-id"])


def episode(service: ServiceThread, episode_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = service.http.get(f"/v1/episodes/{episode_id}").json()
    return shown


def rate(service: ServiceThread, episode_id: str, value: float) -> None:
    body = {"episode_id": episode_id, "value": value}
    assert service.http.post("/v1/feedback", json=body).status_code == 200


def look_again(service: ServiceThread) -> None:
    """Do what the scheduler does every minute."""
    running = service.service
    loop = running._tasks[0].get_loop()
    asyncio.run_coroutine_threadsafe(
        running.parts.trust.run(running.parts.intake.wake), loop
    ).result(30)


def test_a_judge_advises_until_people_agree_with_it_and_then_decides(service):
    alone = chat(service, 99)
    rated = [chat(service, number) for number in range(30)]
    wait_until(lambda: all(episode(service, one)["skill"] for one in [alone, *rated]))
    for number, one in enumerate(rated):
        judge(service, one, float(number % 2))
    judge(service, alone, 0.75)
    look_again(service)
    outcome = episode(service, alone)["outcome"]
    assert (outcome["value"], outcome["provenance"]) == (None, None)
    assert outcome["unscored_reason"].startswith("judge not trusted")
    asked = service.http.get("/v1/episodes/review?limit=5").json()
    assert asked["has_more"] is True
    assert {row["id"] for row in asked["data"]} <= {alone, *rated}
    assert asked["data"][0]["reasons"] == [
        "the judge is unsure: 0.75",
        "the skill has 0 of 30 pairs",
    ]

    for number, one in enumerate(rated):
        rate(service, one, float(number % 2))
    wait_until(lambda: all(episode(service, one)["outcome"]["value"] is not None for one in rated))
    look_again(service)
    wait_until(lambda: episode(service, alone)["outcome"]["value"] == 0.75)
    told = episode(service, alone)
    assert told["outcome"]["provenance"] == "judge"
    [standing] = service.http.get("/v1/status").json()["judges"]
    assert (standing["num_pairs"], standing["is_trusted"], standing["missing"]) == (30, True, [])
    assert standing["agreement"]["kappa"] == 1.0

    # Late feedback wins over the judge, and what the judge said stays.
    rate(service, alone, 0.0)
    wait_until(lambda: episode(service, alone)["outcome"]["provenance"] == "person")
    told = episode(service, alone)
    assert told["outcome"]["value"] == 0.0
    assert sorted(grade["kind"] for grade in told["grades"]) == ["judge", "person"]
    # A changed mind leaves its history.
    rate(service, alone, 1.0)
    wait_until(lambda: episode(service, alone)["outcome"]["value"] == 1.0)
    [past] = episode(service, alone)["past_grades"]
    assert (past["grade"]["kind"], past["grade"]["value"]) == ("person", 0.0)


def test_what_the_user_says_next_is_shown_and_decides_nothing(service):
    first = ask("say hello")
    answer = service.http.post("/v1/chat/completions", json=first)
    episode_id = answer.headers["x-denizen-episode-id"]
    said = answer.json()["choices"][0]["message"]
    more = {"role": "user", "content": "That's wrong, try again"}
    messages = [*first["messages"], {"role": "assistant", "content": said["content"]}, more]
    second = service.http.post("/v1/chat/completions", json=first | {"messages": messages})
    assert second.headers["x-denizen-episode-id"] == episode_id
    wait_until(lambda: bool(episode(service, episode_id)["grades"]))
    told = episode(service, episode_id)
    [reaction] = told["grades"]
    assert (reaction["kind"], reaction["value"]) == ("reaction", 0.0)
    assert reaction["evidence"]["call_id"] == answer.json()["id"]
    assert told["outcome"]["value"] is None


def test_a_correction_becomes_a_task_with_a_reference(service):
    episode_id = chat(service, 1)
    body = {"episode_id": episode_id, "value": 0, "correction": "good morning"}
    assert service.http.post("/v1/feedback", json=body).status_code == 200
    wait_until(lambda: bool(service.http.get("/v1/tasks").json()["data"]))
    [task] = service.http.get("/v1/tasks").json()["data"]
    assert (task["reference"], task["origin"]) == ("good morning", f"episode:{episode_id}")


@pytest.mark.parametrize(
    ("task", "param"),
    [
        ({"prompt": "?", "grader": "numeric", "reference": "a dozen"}, "grader_config"),
        ({"prompt": "?", "grader": "regex", "grader_config": {"pattern": "("}}, "grader_config"),
        ({"prompt": "?", "grader": "unit_tests", "grader_config": {}}, "grader_config.tests"),
        ({"prompt": "?", "grader": "instructions"}, "grader_config"),
    ],
)
def test_a_task_that_could_never_be_scored_is_refused(service, task, param):
    response = service.http.post("/v1/tasks", json={"tasks": [task]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert service.http.get("/v1/tasks").json()["data"] == []
