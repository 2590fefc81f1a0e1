"""Skills over HTTP: found from what is asked, and moved by a person's word."""

from pathlib import Path
from typing import Any

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until


def chat(service: ServiceThread, *texts: str) -> list[str]:
    answers = [service.http.post("/v1/chat/completions", json=ask(text)) for text in texts]
    return [answer.headers["x-denizen-episode-id"] for answer in answers]


def skill_of(service: ServiceThread, episode: str) -> Any:
    return service.http.get(f"/v1/episodes/{episode}").json()["skill"]


def test_skills_are_found_merged_split_and_remember_it(service: ServiceThread) -> None:
    sums = chat(service, *(f"sum {n}" for n in range(5)))
    words = chat(service, *(f"word {n}" for n in range(5)))
    wait_until(lambda: all(skill_of(service, one) for one in (*sums, *words)))
    first, second = skill_of(service, sums[0]), skill_of(service, words[0])
    assert first != second

    merged = service.http.post(f"/v1/skills/{first}/merge", json={"into": second})
    assert merged.json()["id"] == second
    assert service.http.get(f"/v1/skills/{first}").json()["id"] == second
    [late] = chat(service, "sum 99")
    wait_until(lambda: skill_of(service, late) == second)

    part = service.http.post(f"/v1/skills/{second}/split", json={"episode_ids": sums})
    assert part.status_code == 201
    assert skill_of(service, sums[0]) == part.json()["id"]
    shown = service.http.get(f"/v1/skills/{part.json()['id']}").json()
    assert [one["event"] for one in shown["history"]] == ["split_from"]
    [late] = chat(service, "sum 100")
    wait_until(lambda: skill_of(service, late) == part.json()["id"])


def test_bad_merges_and_splits_are_refused(service: ServiceThread) -> None:
    chat(service, *(f"sum {n}" for n in range(5)))
    wait_until(lambda: service.http.get("/v1/skills").json()["data"] != [])
    for path, body, status in (
        ("1/merge", {"into": 99}, 404),
        ("1/merge", {"into": 1}, 400),
        ("1/merge", {}, 400),
        ("1/split", {"episode_ids": []}, 400),
        ("1/split", {"episode_ids": ["ep_none"]}, 404),
        ("9/split", {"episode_ids": ["ep_none"]}, 404),
    ):
        answer = service.http.post(f"/v1/skills/{path}", json=body)
        assert answer.status_code == status, (path, answer.text)


def test_the_job_that_regroups_is_on_the_clock(engine: FakeEngine, tmp_path: Path) -> None:
    sections = {"skills": {"regroup_interval_s": 0.2, "min_founders": 4}}
    with ServiceThread(tmp_path, engine.url, sections) as service:
        sums = chat(service, *(f"sum {n}" for n in range(5)))
        wait_until(lambda: all(skill_of(service, one) for one in sums))
        wait_until(lambda: service.http.get("/v1/skills/1").json()["key_terms"] == ["sum"])
        assert service.http.get("/v1/status").json()["failed_jobs"] == {}
