"""Keys never reach the record, the logs, an error or a metric (case P-54)."""

import logging
import sqlite3
from pathlib import Path

import pytest

import home as house
from tests.running import ServiceThread, ask, wait_until

USER_KEY = "users-own-key-83f1"
ADMIN_KEY = "admins-own-key-27c5"
BEARER = "planted-bearer-token-9d41c7"
X_API_KEY = "planted-x-api-key-5e82"
SK = "sk-planted4f1c9a7b2e8d6035"
IN_BODY = "AKIAIOSFODNN7PLANTED"
IN_URL = "planted-in-url-7c1f93ab"
SECRETS = [BEARER, X_API_KEY, SK, IN_BODY, IN_URL, USER_KEY, ADMIN_KEY]


@pytest.fixture
def logged(tmp_path):
    """Write the log as the service does, at its most talkative."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    house.log_to(tmp_path, "debug", [USER_KEY, ADMIN_KEY])
    for library in ("httpcore", "httpx"):  # the test's own client, which is no part of the service
        logging.getLogger(library).setLevel("WARNING")
    yield tmp_path / "logs" / "service.log"
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def hits(folder: Path) -> list[tuple[str, str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [
        (path.name, secret)
        for path in files
        for secret in SECRETS
        if secret.encode() in path.read_bytes()
    ]


def requests(service: ServiceThread) -> list[str]:
    """Send every secret in every place, with good and bad keys.

    Returns what was answered, but for the completions, which are the model's own words.
    """
    text = f"use {SK} and {IN_BODY}, and Authorization: Bearer {BEARER}, x-api-key: {X_API_KEY}"
    url = {"params": {"api_key": IN_URL}}
    answers = []
    for headers in (
        {"authorization": f"Bearer {USER_KEY}"},
        {"x-api-key": ADMIN_KEY},
        {"authorization": f"Bearer {BEARER}"},
        {"x-api-key": X_API_KEY},
        {"authorization": f"Bearer {SK}"},
        {},
    ):
        post = {"headers": headers, **url}
        for body in (ask(text), ask(text, stream=True), ask(text, nonsense=SK)):
            answers.append(service.http.post("/v1/chat/completions", json=body, **post))
        answers.append(service.http.post(f"/v1/none?token={IN_URL}", json={}, headers=headers))
        answers.append(service.http.get("/v1/episodes", **post))
        answers.append(service.http.get("/metrics", headers=headers))
    assert {answer.status_code for answer in answers} == {200, 400, 401, 404}
    return [
        answer.text
        for answer in answers
        if not (answer.request.method == "POST" and answer.is_success)
    ]


def test_p54_no_secret_is_found_in_logs_record_errors_or_metrics(logged, engine, tmp_path):
    auth = {"user_keys": (USER_KEY,), "admin_keys": (ADMIN_KEY,)}
    engine.answer = lambda weights, messages: f"I read {messages[-1]['content']}"
    with ServiceThread(tmp_path, engine.url, {"auth": auth}) as service:
        service.http.headers.update({"authorization": f"Bearer {ADMIN_KEY}"})
        told = requests(service)
        assert [secret for secret in SECRETS for text in told if secret in text] == []
        feedback = {"value": 0, "comment": f"you leaked {SK}", "correction": f"not {IN_BODY}"}
        episodes = service.http.get("/v1/episodes").json()["data"]
        for row in episodes:
            service.http.post("/v1/feedback", json={"episode_id": row["id"]} | feedback)
        wait_until(
            lambda: all(r["outcome"] for r in service.http.get("/v1/episodes").json()["data"])
        )
        logging.getLogger("denizen").error("refused Bearer %s and %s", BEARER, USER_KEY)
        assert len(episodes) > 1
        assert hits(tmp_path) == []
    assert hits(tmp_path) == []
    assert "refused Bearer [key" in logged.read_text("utf-8")


def test_the_client_gets_the_answer_as_it_is_and_the_record_says_why_it_is_not_learned(
    service, engine, tmp_path
):
    engine.answer = lambda weights, messages: f"mail {SK}"
    answer = service.http.post("/v1/chat/completions", json=ask("hi"))
    assert answer.json()["choices"][0]["message"]["content"] == f"mail {SK}"
    episode_id = answer.headers["x-denizen-episode-id"]
    [call] = service.http.get(f"/v1/episodes/{episode_id}").json()["calls"]
    assert SK not in str(call)
    assert (call["learnable"], call["not_learnable_reason"]) == (False, "redacted")
    assert call["completion_token_ids"] is None


def test_a_conversation_with_a_secret_goes_on_in_its_episode(service, engine, tmp_path):
    """Later requests repeat the secret, by which their place is still found."""
    body = ask(f"my key is {SK}, keep it in mind for the next deployment of this project")
    first = service.http.post("/v1/chat/completions", json=body)
    said = first.json()["choices"][0]["message"]["content"]
    body["messages"] += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "go on"},
    ]
    second = service.http.post("/v1/chat/completions", json=body)
    assert second.headers["x-denizen-episode-id"] == first.headers["x-denizen-episode-id"]
    service.http.get("/v1/status").raise_for_status()  # both answers are in the file
    with sqlite3.connect(tmp_path / "denizen.db") as db:
        dump = "\n".join(db.iterdump())
    assert SK[3:] not in dump
    assert "my key is" in dump
