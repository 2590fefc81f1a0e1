"""Servers by URL behind the whole service: one of two gone, and a version that cannot return."""

from collections.abc import Iterator

import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until
from tests.service.versions import chat, go_live, is_answer_of, make_versions
from tests.tiny_model import VOCAB_SIZE


@pytest.fixture
def second(tiny_model) -> Iterator[FakeEngine]:
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model)) as engine:
        yield engine


@pytest.fixture
def service(engine, second, tmp_path) -> Iterator[ServiceThread]:
    sections = {"engine": {"urls": (engine.url, second.url)}, "learner": {"enabled": False}}
    with ServiceThread(tmp_path, None, sections) as service:
        wait_until(lambda: shown(service)["reason"] is None)
        yield service


def shown(service: ServiceThread) -> dict:
    """Return what the status says of the engines."""
    status: dict = service.http.get("/v1/status").json()["engine"]
    return status


def reasons(service: ServiceThread) -> list[str]:
    found: list[str] = service.http.get("/ready").json()["reasons"]
    return found


def test_one_engine_that_is_gone_is_shown_and_the_other_answers_and_learns_new_versions(
    service, engine, second
):
    first, later = make_versions(service, 2)
    go_live(service, first)
    assert list(engine.adapters) == list(second.adapters) == [first]
    second.stop()
    wait_until(lambda: shown(service)["reason"] is not None)
    assert shown(service)["state"] == "ready"
    assert second.url in shown(service)["reason"]
    assert reasons(service) == []
    assert service.http.get("/ready").status_code == 200
    go_live(service, later)
    assert all(is_answer_of(chat(service), later) for _ in range(10))
    second.start()
    wait_until(lambda: shown(service)["reason"] is None)
    assert later in second.adapters


def test_the_calls_of_one_session_go_to_one_engine_and_sessions_are_spread(service, engine, second):
    for number in range(24):
        for text in ("one", "two", "three"):
            path = f"/s/session-{number}/v1/chat/completions"
            service.http.post(path, json=ask(f"{number} {text}")).raise_for_status()

    def sessions(one: FakeEngine) -> set[str]:
        asked = [r.body["messages"][-1]["content"] for r in one.requests if "chat" in r.path]
        return {text.split()[0] for text in asked if text != "Hello"}

    assert sessions(engine) | sessions(second) == {str(number) for number in range(24)}
    assert not sessions(engine) & sessions(second)
    assert sessions(engine)
    assert sessions(second)


def test_a_live_version_that_is_corrupt_after_a_restart_says_so_and_any_good_one_can_replace_it(
    service, engine, second
):
    versions = make_versions(service, 3)
    for version in versions:
        go_live(service, version)
    weights = service.service.home / "adapters" / versions[-1] / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for one in (engine, second):
        one.stop()
        one.start()
    wait_until(lambda: len(reasons(service)) == 2)
    wait_until(lambda: all(versions[-1] in reason for reason in reasons(service)))
    refused = chat(service)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0
    assert versions[-1] in refused.json()["error"]["message"]
    base = service.http.post("/v1/chat/completions", json=ask("hi") | {"model": "denizen@base"})
    assert is_answer_of(base, "base")
    body = {"to": versions[0], "reason": "its file is broken"}
    assert service.http.post("/v1/adapters/rollback", json=body).json()["moved"] is True
    assert is_answer_of(chat(service), versions[0])
    assert service.http.get("/ready").status_code == 200
