"""Erasing from a running service: nothing of the text is left in its home folder (case P-53)."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

import home as house
from assembly import parts
from memory.erasure_scope import Scope
from tests.records import version
from tests.running import ServiceThread, ask, wait_until
from tests.service.quick_training import QuickTraining
from tests.service.test_learning import learn, live
from tests.service.test_live_learning import SETTINGS, can_learn, work

PLANTED = "zq7PlantedSecretText5f1c9a"
TOOL = {"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}


def files_with(folder: Path, text: str) -> list[str]:
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and text.encode() in path.read_bytes()
    ]


@pytest.fixture
def logged(tmp_path):
    """Write the log as the service does."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    house.log_to(tmp_path, "debug")
    yield tmp_path / "logs" / "service.log"
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def plant(service: ServiceThread, engine) -> str:
    """Let a conversation be recorded, embedded and graded; return its episode."""
    call = json.dumps({"name": "note", "arguments": {"text": f"argument {PLANTED}"}})
    engine.answer = lambda weights, messages: (
        f"answer {PLANTED} <tool_call>{call}</tool_call>" if len(messages) < 3 else "done"
    )
    body = ask(
        f"remember {PLANTED}",
        tools=[TOOL],
        metadata={"reference": f"reference {PLANTED}", "task": f"kind {PLANTED}"},
    )
    first = service.http.post("/v1/chat/completions", json=body)
    said = first.json()["choices"][0]["message"]
    follow = body | {
        "messages": [
            *body["messages"],
            {"role": "assistant", "content": said["content"], "tool_calls": said["tool_calls"]},
            {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": PLANTED},
        ],
        "stream": True,
    }
    second = service.http.post("/v1/chat/completions", json=follow)
    episode_id = first.headers["x-denizen-episode-id"]
    assert second.headers["x-denizen-episode-id"] == episode_id
    opinion = {"value": 0, "comment": f"comment {PLANTED}", "correction": f"correct {PLANTED}"}
    service.http.post("/v1/feedback", json={"episode_id": episode_id} | opinion)
    wait_until(lambda: len(service.http.get(f"/v1/episodes/{episode_id}").json()["grades"]) == 2)
    wait_until(lambda: service.http.get(f"/v1/episodes/{episode_id}").json()["skill"] is not None)
    return episode_id


def test_p53_nothing_of_an_erased_episode_is_left_while_the_service_goes_on(
    logged, engine, tmp_path
):
    with ServiceThread(tmp_path, engine.url) as service:
        other = service.http.post("/v1/chat/completions", json=ask("something else"))
        episode_id = plant(service, engine)
        logging.getLogger("denizen").error("cannot read %s", PLANTED)
        assert {"denizen.db-wal", "logs/service.log"} <= set(files_with(tmp_path, PLANTED))
        answer = service.http.delete(f"/v1/episodes/{episode_id}")
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["counts"]["calls"] == 2
        assert told["files"]["found"] == {}
        assert files_with(tmp_path, PLANTED) == []
        assert service.http.get(f"/v1/episodes/{episode_id}").status_code == 404
        assert service.http.delete(f"/v1/episodes/{episode_id}").status_code == 404
        assert PLANTED not in service.http.get("/v1/skills").text
        kept = other.headers["x-denizen-episode-id"]
        assert service.http.get(f"/v1/episodes/{kept}").status_code == 200
        engine.answer = lambda weights, messages: "as you say"
        again = service.http.post("/v1/chat/completions", json=ask("and on it goes"))
        assert again.status_code == 200
        assert files_with(tmp_path, PLANTED) == []
    assert files_with(tmp_path, PLANTED) == []


def test_an_answer_that_runs_while_its_session_is_erased_is_not_recorded(service, engine):
    headers = {"x-denizen-session": "s1"}
    service.http.post("/v1/chat/completions", json=ask(f"one {PLANTED}"), headers=headers)
    engine.switches.seconds_per_token = 0.1
    with service.http.stream(
        "POST",
        "/v1/chat/completions",
        json=ask(f"two {PLANTED}", stream=True),
        headers=headers,
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        told = service.http.post("/v1/erase", json={"session": "s1"}).json()
        assert told["counts"]["episodes"] == 1
        assert list(lines)[-2] == "data: [DONE]"
    assert service.http.get("/v1/episodes").json()["data"] == []
    assert files_with(service.service.home, PLANTED) == []


@pytest.mark.parametrize("scope", ["session", "user", "episode"])
def test_a_first_answer_that_runs_while_it_is_erased_is_not_recorded(service, engine, scope):
    headers = {"x-denizen-session": "fresh"}
    engine.switches.seconds_per_token = 0.1
    with service.http.stream(
        "POST",
        "/v1/chat/completions",
        json=ask(f"one {PLANTED}", stream=True, user="ann"),
        headers=headers,
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        episode_id = answer.headers["x-denizen-episode-id"]
        named = {"session": "fresh", "user": "ann", "episode": episode_id}[scope]
        assert service.http.post("/v1/erase", json={scope: named}).status_code == 200
        assert list(lines)[-2] == "data: [DONE]"
    assert service.http.get("/v1/episodes").json()["data"] == []
    assert files_with(service.service.home, PLANTED) == []


def test_a_user_of_a_shared_session_is_erased_and_the_others_are_not(service):
    for name in ("ann", "bob"):
        service.http.post(
            "/v1/chat/completions",
            json=ask(f"hi from {name} {PLANTED}{name}", user=name),
            headers={"x-denizen-session": "shared"},
        )
    told = service.http.post("/v1/erase", json={"user": "bob"}).json()
    assert told["counts"]["calls"] == 1
    assert files_with(service.service.home, f"{PLANTED}bob") == []
    assert files_with(service.service.home, f"{PLANTED}ann") != []


def test_an_erasure_that_was_cut_short_is_finished_at_the_next_start(engine, tmp_path):
    with ServiceThread(tmp_path, engine.url) as service:
        answer = service.http.post("/v1/chat/completions", json=ask(f"one {PLANTED}"))
        episode_id = answer.headers["x-denizen-episode-id"]
        erasure = service.parts.eraser.erasure
        scope = Scope(episode=episode_id)
        asyncio.run(erasure.begin(scope, [episode_id], actor="test"))
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / "service.log").write_text(f"cannot read {PLANTED}\n", "utf-8")
    with ServiceThread(tmp_path, engine.url) as service:
        assert files_with(tmp_path, PLANTED) == []
        [row] = service.http.get("/v1/erasures").json()["data"]
        assert row["ended_at"] is not None and row["counts"]["calls"] == 1


def test_an_erased_conversation_begins_anew(service):
    first = service.http.post("/v1/chat/completions", json=ask("hello there"))
    said = first.json()["choices"][0]["message"]["content"]
    episode_id = first.headers["x-denizen-episode-id"]
    assert service.http.delete(f"/v1/episodes/{episode_id}").status_code == 200
    body = ask("hello there")
    body["messages"] += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "go on"},
    ]
    second = service.http.post("/v1/chat/completions", json=body)
    assert second.headers["x-denizen-episode-id"] != episode_id
    shown = service.http.get(f"/v1/episodes/{second.headers['x-denizen-episode-id']}").json()
    assert shown["calls"][0]["parent"] is None


def test_versions_that_learned_from_what_was_erased_are_shown(service):
    """A tainted version cannot become live any more; what holds nothing of it is named."""
    first = service.http.post("/v1/chat/completions", json=ask("hi"))
    episode_id = first.headers["x-denizen-episode-id"]
    versions = service.parts.store.versions
    versions.add(version(1), [episode_id])
    versions.add(version(2, sha256="c" * 64), [])
    told = service.http.delete(f"/v1/episodes/{episode_id}").json()
    [tainted] = told["tainted"]
    assert (tainted["version"], tainted["clean_ancestor"]) == ("denizen-000001", "base")
    shown = {one["id"]: one for one in service.http.get("/v1/adapters").json()["data"]}
    assert shown["denizen-000001"]["status"] == "tainted"
    assert shown["denizen-000001"]["tainted"]["erasure_id"] == told["id"]
    assert shown["denizen-000002"]["tainted"] is None
    assert service.http.get("/v1/status").json()["tainted"] == ["denizen-000001"]
    body = {"force": True, "reason": "want it"}
    forced = service.http.post("/v1/adapters/denizen-000001/promote", json=body)
    assert forced.status_code == 409
    assert "tainted" in forced.json()["error"]["message"]


def test_p53_what_a_version_learned_from_leaves_every_file_and_the_version_is_left(
    logged, engine, tmp_path, monkeypatch
):
    monkeypatch.setattr(parts, "TrainingProcess", QuickTraining)
    with ServiceThread(tmp_path, engine.url, SETTINGS) as service:
        texts = {work(service, n, float(n % 2)): f"build {n}" for n in range(100, 116)}
        wait_until(lambda: can_learn(service))
        candidate = learn(service)["candidate"]
        service.http.post(f"/v1/adapters/{candidate}/approve", json={}).raise_for_status()
        episode_id = service.parts.store.versions.episodes_of(candidate)[0]
        assert files_with(tmp_path, texts[episode_id]) != []
        told = service.http.delete(f"/v1/episodes/{episode_id}").json()
        assert files_with(tmp_path, texts[episode_id]) == []
        [tainted] = told["tainted"]
        assert (tainted["version"], tainted["is_live"]) == (candidate, True)
        assert (tainted["clean_ancestor"], live(service)) == ("base", candidate)
        assert service.http.post("/v1/adapters/rollback", json={}).json()["to"] == "base"
        assert service.http.get(f"/v1/adapters/{candidate}").json()["status"] == "tainted"


def test_a_dry_run_erases_nothing_and_the_audit_names_nobody(service):
    headers = {"x-denizen-session": "anns-session"}
    service.http.post("/v1/chat/completions", json=ask("hi"), headers=headers)
    plan = service.http.post("/v1/erase", json={"session": "anns-session", "dry_run": True}).json()
    assert plan["counts"]["calls"] == 1
    assert service.http.get("/v1/erasures").json()["data"] == []
    service.http.post("/v1/erase", json={"session": "anns-session"})
    [audit] = service.http.get("/v1/erasures").json()["data"]
    assert audit["counts"]["calls"] == 1
    assert "anns-session" not in str(audit)


@pytest.mark.parametrize(
    "body", [{}, {"episode": "a", "user": "b"}, {"who": "x"}, {"tenant": "a/b"}]
)
def test_a_scope_that_is_none_is_refused(service, body):
    assert service.http.post("/v1/erase", json=body).status_code == 400


def test_an_export_holds_a_line_for_each_episode(service):
    for text in ("one", "two"):
        service.http.post(
            "/v1/chat/completions", json=ask(text), headers={"x-denizen-session": text}
        )
    lines = service.http.get("/v1/export/episodes").text.splitlines()
    texts = [json.loads(line)["episode"]["task_text"] for line in lines]
    assert texts == ["one", "two"]
    assert json.loads(lines[0])["calls"][0]["completion_token_ids"]
    one = service.http.get("/v1/export/episodes", params={"session": "two"}).text.splitlines()
    assert len(one) == 1
    none = service.http.get("/v1/export/episodes", params={"since": "2999-01-01"})
    assert (none.status_code, none.text) == (200, "")
    assert service.http.get("/v1/export/episodes", params={"since": "soon"}).status_code == 400
