"""Judges through the whole service: behind the answers, advisory, and harmless when they fail."""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from agent import admission
from assembly import jobs, parts
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until
from tests.service.quick_training import QuickTraining
from tests.service.test_learning import LEARNER, learn, right_answer, tasks
from tests.tiny_model import VOCAB_SIZE

KEY = "sk-proj-4tQ9w2LmZ7"
ASKED = {"grader": "judge"}


def judging(score: int) -> Callable[[str, Sequence[Mapping[str, Any]]], str]:
    """Judge where a judge is asked, and chat where not."""

    def answer(model: str, messages: Sequence[Mapping[str, Any]]) -> str:
        system = str(messages[0]["content"])
        if not system.startswith("You are a careful grader"):
            return f"{model} says hello"
        ticket = re.search(r'"ticket": "([0-9a-f]+)"', system)
        assert ticket is not None
        reason = "STRICT" if "STRICT" in system else "lenient"
        return json.dumps({"ticket": ticket[1], "reason": reason, "score": score}) + "\n"

    return answer


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge as soon as an answer has ended, and only what these tests give to judge."""
    monkeypatch.setattr(admission, "BUSY_FOR_S", 0.0)
    monkeypatch.setattr(jobs, "TRUST_INTERVAL_S", 3_600.0)


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[FakeEngine]:
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=judging(8)) as engine:
        yield engine


@pytest.fixture
def teacher() -> Iterator[FakeEngine]:
    with FakeEngine(base_name="teacher-1", api_key=KEY, answer=judging(3)) as teacher:
        yield teacher


def of(teacher: FakeEngine) -> dict[str, Any]:
    return {"base_url": f"{teacher.url}/v1", "model": "teacher-1", "api_key": SecretStr(KEY)}


@contextmanager
def serving(
    home: Path, engine: FakeEngine, **sections: Mapping[str, Any]
) -> Iterator[ServiceThread]:
    with ServiceThread(home, engine.url, sections) as service:
        yield service


def chat(service: ServiceThread, text: str = "sum it up", **metadata: Any) -> str:
    response = service.http.post("/v1/chat/completions", json=ask(text, metadata=metadata))
    assert response.status_code == 200, response.text
    return str(response.headers["x-denizen-episode-id"])


def episode(service: ServiceThread, episode_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = service.http.get(f"/v1/episodes/{episode_id}").json()
    return shown


def judged(service: ServiceThread, episode_id: str) -> list[dict[str, Any]]:
    return [one for one in episode(service, episode_id)["grades"] if one["kind"] == "judge"]


def status(service: ServiceThread) -> dict[str, Any]:
    told: dict[str, Any] = service.http.get("/v1/status").json()["judge"]
    return told


def test_an_episode_that_names_the_judge_is_judged_by_the_base_model(engine, tmp_path) -> None:
    with serving(tmp_path, engine) as service:
        asked, other = chat(service, **ASKED), chat(service, "sum it, too")
        wait_until(lambda: bool(judged(service, asked)))
        [grade] = judged(service, asked)
        shown = episode(service, asked)
        assert (grade["value"], grade["grader"], grade["explanation"]) == (0.8, "judge", "lenient")
        version = r"score\.1\.1/rubric_task\.1/3x0\.7/denizen@base:[0-9a-f]{12}"
        assert re.fullmatch(version, grade["version"])
        assert grade["evidence"]["call_id"] == shown["calls"][0]["id"]
        assert grade["evidence"]["adapter"] == "base"
        wait_until(lambda: episode(service, other)["outcome"] is not None)
        assert judged(service, other) == []
        assert {request.body["model"] for request in engine.requests if request.body} == {"base"}
        assert len(shown["calls"]) == 1  # the judge's own calls are no part of the record
        assert service.http.get("/v1/status").json()["counts"]["calls"] == 2


def test_a_judges_grade_is_shown_and_decides_no_outcome(engine, tmp_path) -> None:
    with serving(tmp_path, engine) as service:
        episode_id = chat(service, **ASKED)
        wait_until(lambda: bool(judged(service, episode_id)))
        wait_until(lambda: is_digested(service, episode_id))
        assert episode(service, episode_id)["outcome"]["value"] is None
        service.http.post("/v1/feedback", json={"episode_id": episode_id, "value": 0.5})
        wait_until(lambda: episode(service, episode_id)["outcome"]["value"] == 0.5)
        outcome = episode(service, episode_id)["outcome"]
        assert (outcome["provenance"], outcome["num_grades"]) == ("person", 1)
        assert [grade["value"] for grade in judged(service, episode_id)] == [0.8]


def is_digested(service: ServiceThread, episode_id: str) -> bool:
    shown = episode(service, episode_id)
    return bool(shown["revision"] == shown["digested_revision"])


@pytest.mark.parametrize("mode", ["asked", "all"])
def test_only_where_all_are_judged_is_one_that_names_nobody(engine, tmp_path, mode) -> None:
    with serving(tmp_path, engine, graders={"judge": mode}) as service:
        checked = chat(service, "sum", reference="base says hello")
        unlearned = service.http.post(
            "/v1/chat/completions", json=ask("sum"), headers={"x-denizen-learn": "off"}
        ).headers["x-denizen-episode-id"]
        plain, named = chat(service), chat(service, **ASKED)
        wait_until(lambda: bool(judged(service, named)))
        wait_until(lambda: status(service)["waiting"] == 0)
        assert bool(judged(service, plain)) == (mode == "all")
        assert judged(service, checked) == judged(service, unlearned) == []
        assert episode(service, checked)["outcome"]["provenance"] == "check"


def test_without_a_judge_its_name_is_refused(engine, tmp_path) -> None:
    with serving(tmp_path, engine, graders={"judge": "off"}) as service:
        response = service.http.post("/v1/chat/completions", json=ask("hi", metadata=ASKED))
        assert response.status_code == 400
        assert "graders.judge is off" in response.json()["error"]["message"]


def test_a_conversation_that_goes_on_is_judged_by_its_last_answer(engine, tmp_path) -> None:
    with serving(tmp_path, engine) as service:
        path = "/s/long/v1/chat/completions"
        episode_id = service.http.post(path, json=ask("one", metadata=ASKED)).headers[
            "x-denizen-episode-id"
        ]
        wait_until(lambda: bool(judged(service, episode_id)))
        first = judged(service, episode_id)
        service.http.post(path, json=ask("and two"))
        wait_until(lambda: judged(service, episode_id) not in ([], first))
        shown = episode(service, episode_id)
        assert [one["evidence"]["call_id"] for one in judged(service, episode_id)] == [
            shown["calls"][-1]["id"]
        ]


def test_a_teacher_by_url_judges_and_its_key_is_kept_nowhere(engine, teacher, tmp_path) -> None:
    with serving(tmp_path, engine, teacher=of(teacher)) as service:
        episode_id = chat(service, f"is {KEY} a good key?", **ASKED)
        wait_until(lambda: bool(judged(service, episode_id)))
        [grade] = judged(service, episode_id)
        assert (grade["value"], grade["version"].rpartition("/")[2]) == (0.3, "teacher-1")
        assert len(teacher.requests) == 3
        assert KEY not in service.http.get("/v1/status").text
        assert KEY not in service.http.get("/metrics").text
        assert KEY not in json.dumps([request.body for request in teacher.requests])
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def test_p_48_a_judge_that_hangs_stops_neither_chat_nor_learning_from_others(
    tiny_model, teacher, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(parts, "TrainingProcess", QuickTraining)
    teacher.control(hangs=True, delay_s=3_600.0)
    graders = {"judge": "all", "deadline_s": 3_600.0}
    one_step = LEARNER | {"steps_per_cycle": 1}
    with (
        FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=right_answer) as engine,
        serving(
            tmp_path, engine, teacher=of(teacher), graders=graders, learner=one_step
        ) as service,
    ):
        hung = [chat(service, f"2 * {number} = ?", **ASKED) for number in range(3, 6)]
        wait_until(lambda: status(service)["under_way"] == len(hung))
        # While the judge hangs: a check, a person, skills, a whole cycle, and chat.
        checked = chat(service, "2 * 7 = ?", reference="14")
        wait_until(lambda: (episode(service, checked)["outcome"] or {}).get("value") is not None)
        service.http.post("/v1/feedback", json={"episode_id": hung[0], "value": True})
        wait_until(lambda: (episode(service, hung[0])["outcome"] or {}).get("value") == 1.0)
        service.http.post("/v1/tasks", json={"tasks": tasks(60)})
        cycle = learn(service)
        assert cycle["state"] == "promoted", cycle["end_reason"]
        assert chat(service, "2 * 9 = ?")
        assert status(service)["under_way"] >= len(hung)
        assert not any(judged(service, one) for one in hung)


def test_a_judge_that_hangs_gives_no_number_when_its_time_is_over(
    engine, teacher, tmp_path
) -> None:
    teacher.control(hangs=True, delay_s=3_600.0)
    graders = {"deadline_s": 0.1, "votes": 1}
    with serving(tmp_path, engine, teacher=of(teacher), graders=graders) as service:
        episode_id = chat(service, **ASKED)
        wait_until(lambda: bool(judged(service, episode_id)))
        [grade] = judged(service, episode_id)
        assert (grade["value"], grade["unscored_reason"]) == (None, "judge_timeout")
        wait_until(lambda: status(service)["results"] == {"judge_timeout": 1})
        assert status(service)["waiting"] == 1  # it is asked again later


def test_no_more_answers_hang_at_once_than_may_be_and_checks_go_on(
    engine, teacher, tmp_path
) -> None:
    teacher.control(delay_s=3_600.0)
    graders = {"judge": "all", "deadline_s": 3_600.0}
    with serving(tmp_path, engine, teacher=of(teacher), graders=graders) as service:
        for number in range(20):
            chat(service, f"sum {number}")
        wait_until(lambda: status(service)["under_way"] == 4)  # graders.max_parallel
        wait_until(lambda: status(service)["waiting"] == 20)
        assert len(teacher.requests) <= 4
        checked = chat(service, "sum", reference="x")
        wait_until(lambda: episode(service, checked)["outcome"] is not None)


def test_what_waits_is_judged_after_a_restart(engine, teacher, tmp_path) -> None:
    teacher.control(delay_s=3_600.0)
    with serving(tmp_path, engine, teacher=of(teacher)) as service:
        episode_id = chat(service, **ASKED)
        wait_until(lambda: status(service)["under_way"] == 1)
    teacher.reset()
    with serving(tmp_path, engine, teacher=of(teacher)) as service:
        wait_until(lambda: bool(judged(service, episode_id)))
        assert [grade["value"] for grade in judged(service, episode_id)] == [0.3]


def test_status_and_metrics_say_what_judging_costs(engine, teacher, tmp_path) -> None:
    with serving(tmp_path, engine, teacher=of(teacher), graders={"votes": 5}) as service:
        before = service.http.get("/metrics").text
        episode_id = chat(service, **ASKED)
        wait_until(lambda: bool(judged(service, episode_id)))
        told = status(service)
        assert (told["mode"], told["model"], told["waiting"]) == ("asked", "teacher-1", 0)
        assert told["calls"] % 5 == 0 and told["tokens"] > 100 and told["seconds"] > 0
        wait_until(lambda: status(service)["results"] == {"scored": 1})
        after = service.http.get("/metrics").text
        for name in (
            'denizen_judge_calls_total{status="answered"}',
            "denizen_judge_tokens_total",
            'denizen_judgements_total{result="scored"}',
        ):
            assert metric(after, name) > metric(before, name)
        wait_until(lambda: metric(service.http.get("/metrics").text, "denizen_judge_waiting") == 0)


def metric(text: str, name: str) -> float:
    values = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + " ")]
    return float(values[0]) if values else 0.0


def test_a_spent_budget_makes_answers_wait_and_is_shown(engine, teacher, tmp_path) -> None:
    graders = {"votes": 1, "max_calls_per_hour": 2, "max_parallel": 1}
    with serving(tmp_path, engine, teacher=of(teacher), graders=graders) as service:
        for number in range(4):
            chat(service, f"sum {number}", **ASKED)
        wait_until(lambda: status(service)["paused"] == "judge_budget_spent")
        wait_until(lambda: status(service)["waiting"] == 2)
        assert len(teacher.requests) == 2
        assert 0 < status(service)["paused_for_s"] <= 3_600


def test_the_rubric_of_a_skill_is_used_and_named_in_the_version(engine, tmp_path) -> None:
    with serving(tmp_path, engine) as service:
        service.http.post("/v1/tasks", json={"tasks": [{"prompt": "sum 1", "reference": "1"}]})
        wait_until(lambda: bool(service.http.get("/v1/skills").json()["data"]))
        default = service.http.get("/v1/skills/1/rubric").json()
        assert (default["is_default"], default["version"]) == (True, "rubric_task.1")
        for text in ("Be STRICT.", "Be STRICT, please."):
            body = {"text": text, "author": "ada"}
            said = service.http.put("/v1/skills/1/rubric", json=body).json()
        assert (said["version"], said["is_default"]) == (2, False)
        assert [row["author"] for row in said["history"]] == ["ada", "ada"]
        asked = chat(service, "sum 3", **ASKED)
        wait_until(lambda: bool(judged(service, asked)))
        assert episode(service, asked)["skill"] == 1
        [grade] = judged(service, asked)
        assert (grade["explanation"], grade["version"].split("/")[1]) == ("STRICT", "skill1.2")
        back = service.http.put("/v1/skills/1/rubric", json={"text": ""}).json()
        assert (back["is_default"], len(back["history"])) == (True, 3)
        assert service.http.get("/v1/skills/99/rubric").status_code == 404
        assert service.http.put("/v1/skills/99/rubric", json={"text": "x"}).status_code == 404
        assert service.http.put("/v1/skills/1/rubric", json={"txt": "x"}).status_code == 400


def test_only_an_admin_reads_or_writes_a_rubric(engine, tmp_path) -> None:
    keys = {"user_keys": ["user-key-1"], "admin_keys": ["admin-key-1"]}
    with serving(tmp_path, engine, auth=keys) as service:
        path = f"{service.http.base_url}/v1/skills/1/rubric"
        for key, expected in (("user-key-1", 403), ("admin-key-1", 404)):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.get(path, headers=headers).status_code == expected
            put = httpx.put(path, headers=headers, json={"text": "x"})
            assert put.status_code == expected


def test_an_episode_that_is_erased_while_it_is_judged_leaves_no_trace(
    engine, teacher, tmp_path
) -> None:
    go = threading.Event()
    judge = judging(3)

    def held(model: str, messages: Sequence[Mapping[str, Any]]) -> str:
        go.wait(20)
        return judge(model, messages)

    teacher.answer = held
    with serving(tmp_path, engine, teacher=of(teacher), graders={"votes": 1}) as service:
        episode_id = chat(service, **ASKED)
        wait_until(lambda: len(teacher.requests) == 1)
        gone = service.http.delete(f"/v1/episodes/{episode_id}")
        assert gone.status_code == 200, gone.text
        go.set()
        wait_until(lambda: status(service)["under_way"] == 0)
        assert status(service)["waiting"] == 0
        rows = service.parts.store.database.read("SELECT COUNT(*) AS n FROM grades")
        assert rows == [{"n": 0}]
