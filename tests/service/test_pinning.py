"""``engine.pin_sessions`` through the service: a conversation keeps its version over promotions."""

import threading

import pytest

from tests.running import ServiceThread, ask, wait_until
from tests.service.versions import go_live, make_versions

FIRST, SECOND = "denizen-000001", "denizen-000002"


@pytest.fixture(params=[True, False], ids=["pinned", "not pinned"])
def pins(request) -> bool:
    return request.param


@pytest.fixture
def service(engine, tmp_path, pins):
    sections = {"engine": {"pin_sessions": pins}, "learner": {"enabled": False}}
    with ServiceThread(tmp_path, engine.url, sections) as service:
        first, _ = make_versions(service, 2)
        go_live(service, first)
        yield service


def answered_by(service, body: dict, session: str | None = None) -> str:
    path = f"/s/{session}/v1/chat/completions" if session else "/v1/chat/completions"
    response = service.http.post(path, json=body)
    response.raise_for_status()
    return response.headers["x-denizen-adapter"]


def test_a_named_session_keeps_its_version_and_a_new_one_gets_the_live_one(service, pins):
    assert answered_by(service, ask("one"), "mine") == FIRST
    go_live(service, SECOND)
    stays = FIRST if pins else SECOND
    assert answered_by(service, ask("two"), "mine") == stays
    assert answered_by(service, ask("one"), "another") == SECOND
    assert answered_by(service, ask("three") | {"model": "denizen@base"}, "mine") == "base"
    assert answered_by(service, ask("four"), "mine") == stays


def test_a_recognised_conversation_keeps_its_version(service, pins):
    first = service.http.post("/v1/chat/completions", json=ask("one"))
    go_live(service, SECOND)
    body = ask("one")
    body["messages"] += [
        first.json()["choices"][0]["message"],
        {"role": "user", "content": "and two?"},
    ]
    assert answered_by(service, body) == (FIRST if pins else SECOND)
    assert answered_by(service, ask("one")) == SECOND


def test_what_was_rolled_back_is_left_at_once(service):
    go_live(service, SECOND)
    assert answered_by(service, ask("one"), "mine") == SECOND
    service.http.post("/v1/adapters/rollback", json={"reason": "a test"}).raise_for_status()
    assert answered_by(service, ask("two"), "mine") == FIRST


def test_a_promotion_in_the_middle_of_a_stream_changes_neither_it_nor_the_sessions_next_call(
    service, engine, pins
):
    engine.control(chunk_delay_s=0.3)
    path = "/s/mine/v1/chat/completions"
    answers: list[str] = []

    def stream() -> None:
        with service.http.stream("POST", path, json=ask("one", stream=True)) as response:
            answers.append(response.headers["x-denizen-adapter"])
            answers.append(response.read().decode())

    client = threading.Thread(target=stream)
    client.start()
    wait_until(lambda: len(answers) == 1)
    go_live(service, SECOND)
    next_by = answered_by(service, ask("two"), "mine")
    assert len(answers) == 1, "the stream ended too soon for this test"
    client.join(10)
    assert answers[0] == FIRST
    assert f"{FIRST}:" in answers[1]
    assert "[DONE]" in answers[1]
    assert next_by == (FIRST if pins else SECOND)
