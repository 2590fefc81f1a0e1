"""Promotions and rollbacks through the whole service, while an engine does its worst."""

import logging
import shutil
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from agent import unloads
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until
from tests.service.versions import (
    chat,
    go_live,
    is_answer_of,
    live,
    make_version,
    make_versions,
    promote,
)
from tests.tiny_model import VOCAB_SIZE

NUM_SLOTS = 4


@pytest.fixture
def engine(tiny_model) -> Iterator[FakeEngine]:
    root = str(tiny_model)
    with FakeEngine(vocab_size=VOCAB_SIZE, root=root, max_loras=NUM_SLOTS) as engine:
        yield engine


@pytest.fixture
def service(engine, tmp_path) -> Iterator[ServiceThread]:
    sections = {"engine": {"max_loras": NUM_SLOTS}, "learner": {"enabled": False}}
    with ServiceThread(tmp_path, engine.url, sections) as service:
        yield service


def served(service: ServiceThread) -> list[str]:
    return [model["id"] for model in service.http.get("/v1/models").json()["data"]]


def stream_once(url: str) -> httpx.Response:
    return httpx.post(
        f"{url}/v1/chat/completions", json=ask("go on please", stream=True), timeout=30
    )


def moves(service: ServiceThread) -> list[dict]:
    return service.http.get("/v1/adapters/moves").json()["data"]


def unload_failures(service: ServiceThread) -> float:
    lines = service.http.get("/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith("denizen_unload_failures_total ")]
    return float(line.split()[1])


def test_each_version_has_a_name_of_its_own_that_is_loaded_before_it_is_asked(service, engine):
    """P-01: no answer comes from the prefix cache of other weights."""
    versions = make_versions(service, 3)
    for version in versions:
        go_live(service, version)
        assert is_answer_of(chat(service), version)
    loaded = [r.body["lora_name"] for r in engine.requests if "/load_lora" in r.path]
    assert loaded == versions
    for version in versions:
        about = [r for r in engine.requests if version in str(r.body)]
        assert about[0].path == "/v1/load_lora_adapter"
        assert "/v1/chat/completions" in {r.path for r in about}


def test_a_version_is_read_once_and_answers_after_its_folder_is_gone(service, engine, tmp_path):
    """P-02: nothing makes the engine read the files again with each request."""
    version = make_version(service)
    go_live(service, version)
    shutil.move(tmp_path / "adapters" / version, tmp_path / "elsewhere")
    assert all(is_answer_of(chat(service, f"n{n}"), version) for n in range(20))
    assert len(engine.paths("/v1/load_lora_adapter")) == 1
    assert not [r for r in engine.requests if "load_inplace" in str(r.body)]


def test_streams_through_promotions_and_rollbacks_all_end_well_on_one_version(service):
    """P-04, small: four streams at a time, fifteen moves."""
    versions = make_versions(service, 3)
    stop, answers = threading.Event(), []

    def stream_on() -> None:
        while not stop.is_set():
            answers.append(stream_once(str(service.http.base_url)))

    streams = [threading.Thread(target=stream_on) for _ in range(4)]
    for thread in streams:
        thread.start()
    try:
        for number in range(10):
            go_live(service, versions[number % len(versions)])
            if number % 2:
                service.http.post("/v1/adapters/rollback", json={}).raise_for_status()
        wait_until(lambda: len(answers) > 40)
    finally:
        stop.set()
        for thread in streams:
            thread.join(30)
    assert {answer.status_code for answer in answers} == {200}
    assert all(answer.text.endswith("data: [DONE]\n\n") for answer in answers)
    for answer in answers:
        told = answer.headers["x-denizen-adapter"]
        assert [name for name in versions if name in answer.text] == [told] * (told != "base")
        path = f"/v1/episodes/{answer.headers['x-denizen-episode-id']}"
        calls = {call["id"]: call for call in service.http.get(path).json()["calls"]}
        assert calls[answer.headers["x-denizen-call-id"]]["adapter"] == told
    assert len({answer.headers["x-denizen-adapter"] for answer in answers}) > 1


def test_a_long_stream_ends_on_the_version_it_began_with(service, engine):
    """P-05: what is in use is not unloaded."""
    first, *later = make_versions(service, 4)
    go_live(service, first)
    engine.control(chunk_delay_s=0.1)
    with service.http.stream(
        "POST", "/v1/chat/completions", json=ask("a b c d e f g h", stream=True)
    ) as response:
        lines = (line for line in response.iter_lines() if line)
        opening = next(lines)
        for version in later:
            go_live(service, version)
        assert first in engine.adapters
        rest = list(lines)
    assert response.headers["x-denizen-adapter"] == first
    assert rest[-1] == "data: [DONE]"
    assert f"{first}: " not in opening
    assert first in "".join(rest)
    assert is_answer_of(chat(service), later[-1])


def test_an_unload_that_never_answers_holds_no_chat_up_and_is_told(
    service, engine, monkeypatch, caplog
):
    """P-05: who asks never waits for it, promotions wait a bounded time, and people are told."""
    monkeypatch.setattr(unloads, "UNLOAD_TIMEOUT_S", 2.0)
    engine.control(unload_hangs=True)
    versions = make_versions(service, NUM_SLOTS + 2)
    num_failures = unload_failures(service)

    def promote_all() -> None:
        for version in versions:
            go_live(service, version)

    promoting = threading.Thread(target=promote_all)
    num_meanwhile = 0
    with caplog.at_level(logging.WARNING), httpx.Client(base_url=service.http.base_url) as http:
        promoting.start()
        while promoting.is_alive():
            answer = http.post("/v1/chat/completions", json=ask("hi"))
            assert is_answer_of(answer, answer.headers["x-denizen-adapter"])
            num_meanwhile += "/v1/unload_lora_adapter" in engine.paths()
    promoting.join()
    assert num_meanwhile > 10  # if they waited for the unloads it were one each
    assert is_answer_of(chat(service), versions[-1])
    assert f"did not unload {versions[0]}" in caplog.text
    assert unload_failures(service) > num_failures
    assert service.http.get("/ready").status_code == 200


def test_a_hundred_promotions_never_hold_more_than_four_and_the_first_comes_back(service, engine):
    """P-06: versions that nobody needs are unloaded, and loaded again when they are asked for."""
    versions = make_versions(service, 100)
    for version in versions:
        go_live(service, version)
    assert is_answer_of(chat(service), versions[-1])
    body = {"to": versions[0], "reason": "a test"}
    assert service.http.post("/v1/adapters/rollback", json=body).json()["moved"] is True
    assert is_answer_of(chat(service), versions[0])
    assert engine.adapters.most_held <= NUM_SLOTS
    assert engine.adapters.num_evictions == 0


def test_an_adapter_without_effect_is_not_promoted(service, engine):
    """P-07: the engine loads it "fine" and would answer as the base model does."""
    first, second = make_versions(service, 2)
    go_live(service, first)
    engine.control(no_effect=True)
    refused = promote(service, second)
    assert 400 <= refused.status_code < 500
    assert "no effect" in refused.json()["error"]["message"]
    engine.control(no_effect=False)
    assert live(service) == first
    assert is_answer_of(chat(service), first)
    wait_until(lambda: list(engine.adapters) == [first], 5)


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_load_that_the_engine_refuses_moves_nothing(service, engine, status):
    """P-03: a failed load leaves the old version answering."""
    first, second = make_versions(service, 2)
    go_live(service, first)
    known = served(service)
    engine.control(refuse_load={second: status})
    refused = promote(service, second)
    assert 400 <= refused.status_code < 500
    assert second in refused.json()["error"]["message"]
    assert live(service) == first
    assert served(service) == known
    assert is_answer_of(chat(service), first)
    assert [move["to_version"] for move in moves(service)] == [first]


def test_a_slow_load_holds_no_chat_up_and_moves_the_pointer_when_it_is_done(service, engine):
    """P-04: load first, then move; requests meanwhile are answered by what is live."""
    first, second = make_versions(service, 2)
    go_live(service, first)
    engine.control(load_delay_s=1.0)
    promoting = threading.Thread(target=go_live, args=(service, second))
    promoting.start()
    wait_until(lambda: len(engine.paths("/v1/load_lora_adapter")) == 2)
    with httpx.Client(base_url=service.http.base_url) as http:
        began, num_answers = time.monotonic(), 0
        while promoting.is_alive():
            answer = http.post("/v1/chat/completions", json=ask("hi"))
            if time.monotonic() - began < 0.5:
                assert is_answer_of(answer, first)
                num_answers += 1
    promoting.join()
    assert num_answers > 2
    assert is_answer_of(chat(service), second)
