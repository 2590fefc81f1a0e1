"""An engine that dies, comes back empty, hangs or is slow, seen by the service's clients."""

import json
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest

from agent import attached, repair
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until
from tests.service.versions import chat, go_live, is_answer_of, live, make_version
from tests.tiny_model import VOCAB_SIZE


@pytest.fixture
def engine(tiny_model) -> Iterator[FakeEngine]:
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), max_loras=4) as engine:
        yield engine


@pytest.fixture
def service(engine, tmp_path, monkeypatch) -> Iterator[ServiceThread]:
    monkeypatch.setattr(attached, "POLL_S", 0.2)
    monkeypatch.setattr(attached, "PROGRESS_INTERVAL_S", 0.1)
    monkeypatch.setattr(attached, "PROGRESS_TIMEOUT_S", 0.5)
    monkeypatch.setattr(repair, "REPAIR_PAUSE_S", 0.2)
    with ServiceThread(tmp_path, engine.url, {"learner": {"enabled": False}}) as service:
        yield service


@pytest.fixture
def version(service) -> str:
    """Return a version that is live."""
    version = make_version(service)
    go_live(service, version)
    return version


def is_ready(service: ServiceThread) -> bool:
    return service.http.get("/ready").status_code == 200


def newest_calls(service: ServiceThread) -> list[dict]:
    episode = service.http.get("/v1/episodes").json()["data"][0]["id"]
    return service.http.get(f"/v1/episodes/{episode}").json()["calls"]


def is_told_to_retry(response: httpx.Response) -> bool:
    return response.status_code == 503 and int(response.headers["retry-after"]) > 0


def chat_until(service: ServiceThread, is_over: Callable[[httpx.Response], bool]) -> list:
    """Ask again and again, streamed and not, until an answer says that it is over."""
    answers: list[httpx.Response] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        answers.append(chat(service, stream=bool(len(answers) % 2)))
        if is_over(answers[-1]):
            return answers
        time.sleep(0.01)
    raise AssertionError(f"not within 20 s: {answers[-1].text}")


def test_while_a_killed_engine_is_gone_clients_are_told_to_retry(service, engine, version):
    """P-08: nothing else answers in its place, and readiness says why."""
    engine.stop()
    assert is_told_to_retry(chat(service))
    assert is_told_to_retry(chat(service, stream=True))
    wait_until(lambda: not is_ready(service), 10)
    assert engine.url in service.http.get("/ready").json()["reasons"][0]
    assert is_told_to_retry(chat(service, model="denizen@base"))
    assert service.http.get("/health").status_code == 200


def test_an_engine_that_restarts_empty_answers_only_with_the_live_version(service, engine, version):
    """P-08: the version is loaded again before anything is routed to it."""
    engine.control(load_delay_s=0.5)
    engine.stop()
    engine.start()
    engine.requests.clear()
    answers = chat_until(service, lambda answer: answer.status_code == 200)
    assert len(answers) > 5
    assert all(is_told_to_retry(answer) for answer in answers[:-1])
    assert answers[-1].headers["x-denizen-adapter"] == version
    wait_until(lambda: is_ready(service), 10)
    assert is_answer_of(chat(service), version)
    chats = [r for r in engine.requests if r.path == "/v1/chat/completions"]
    assert {r.body["model"] for r in chats if r.body.get("max_tokens") != 1} == {version}
    assert [r.body["lora_name"] for r in engine.requests if "/load_lora" in r.path] == [version]


def test_an_engine_that_refuses_the_live_version_after_a_restart_answers_nothing_in_its_place(
    service, engine, version
):
    """P-08: readiness names the version; once the engine takes it, everything goes on."""
    engine.control(refuse_load={"*": 500})
    engine.stop()
    engine.start()
    wait_until(lambda: len(engine.paths("/v1/load_lora_adapter")) >= 3, 10)
    assert is_told_to_retry(chat(service))
    ready = service.http.get("/ready")
    assert ready.status_code == 503
    assert version in ready.json()["reasons"][0]
    engine.reset()
    wait_until(lambda: is_ready(service), 10)
    assert is_answer_of(chat(service), version)


def test_base_asked_for_by_name_is_answered_by_base_after_a_restart(service, engine, version):
    """P-08: an answer from base is right where base was asked for, and says so."""
    engine.stop()
    engine.start()
    wait_until(lambda: chat(service, model="denizen@base").status_code == 200, 10)
    assert is_answer_of(chat(service, model="denizen@base"), "base")
    wait_until(lambda: is_answer_of(chat(service), version), 10)


def test_clients_that_never_stop_asking_see_no_other_version_through_three_kills(
    service, engine, version
):
    """P-08: under load, an engine killed in mid-answer and back at once."""
    stop, answers = threading.Event(), []

    def talk() -> None:
        with httpx.Client(base_url=service.http.base_url, timeout=30) as http:
            while not stop.is_set():
                answers.append(http.post("/v1/chat/completions", json=ask("hi")))

    clients = [threading.Thread(target=talk) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for _ in range(3):
            num_before = len(answers)
            wait_until(lambda num=num_before: any(a.status_code == 200 for a in answers[num:]))
            engine.stop()
            engine.start()
        wait_until(lambda: answers[-1].status_code == 200)
    finally:
        stop.set()
        for client in clients:
            client.join(30)
    answered = [answer for answer in answers if answer.status_code == 200]
    assert all(is_answer_of(answer, version) for answer in answered)
    failed = {(a.status_code, a.text) for a in answers if a.status_code != 200}
    assert {status for status, _ in failed} <= {503}, failed


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_engine_killed_before_the_first_byte_is_a_503_and_an_error_record(
    service, engine, version, is_streamed
):
    """P-23: what is known before the first byte is a status."""
    engine.control(delay_s=30)
    engine.requests.clear()
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(chat(service, stream=is_streamed)))
    asking.start()
    wait_until(lambda: "/v1/chat/completions" in engine.paths())
    engine.stop()
    asking.join(10)
    assert is_told_to_retry(answers[0]), answers[0].text
    [call] = newest_calls(service)
    assert (call["status"], call["message"]) == ("error", None)


def test_an_engine_killed_in_mid_stream_is_an_error_event_and_an_error_record(
    service, engine, version
):
    """P-23: an answer that broke off does not look like a short success."""
    engine.control(chunk_delay_s=0.05)
    with service.http.stream(
        "POST", "/v1/chat/completions", json=ask("a b c d e f g h", stream=True)
    ) as response:
        lines = (line for line in response.iter_lines() if line)
        seen = [next(lines), next(lines), next(lines)]
        engine.stop()
        seen += list(lines)
    assert "error" in json.loads(seen[-1].removeprefix("data: "))
    assert "data: [DONE]" not in seen
    assert '"finish_reason":"stop"' not in "".join(seen)
    [call] = newest_calls(service)
    assert (call["status"], call["learnable"]) == ("error", False)
    assert 0 < len(call["completion_token_ids"]) < 10
    assert len(call["sampler_logprobs"]) == len(call["completion_token_ids"])


def test_the_openai_client_raises_when_the_engine_is_killed_in_mid_stream(service, engine, version):
    """P-23: a client library must not take it for an end."""
    engine.control(chunk_delay_s=0.05)
    messages = [{"role": "user", "content": "a b c d e f g h"}]
    url = f"{service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(model="denizen", messages=messages, stream=True)
        chunks = iter(stream)
        next(chunks)
        engine.stop()
        with pytest.raises(openai.APIError):
            list(chunks)


def test_an_engine_that_is_healthy_but_gives_no_token_is_not_ready(service, engine, version):
    """P-13: readiness is progress, and comes back with it."""
    engine.control(hangs=True)
    assert httpx.get(f"{engine.url}/health").status_code == 200
    wait_until(lambda: not is_ready(service), 10)
    assert engine.url in service.http.get("/ready").json()["reasons"][0]
    assert is_told_to_retry(chat(service))
    engine.control(hangs=False)
    wait_until(lambda: is_ready(service), 10)
    assert is_answer_of(chat(service), version)


def test_an_engine_too_slow_for_a_look_but_moving_stays_ready(service, engine, version):
    """P-13: a busy engine is not a dead one; its tokens come, though not the one of the look."""
    engine.control(seconds_per_token=0.3)  # a look takes two of these, and has 0.5 s
    askers = [threading.Thread(target=chat, args=(service, "a b c d e f g h")) for _ in range(4)]
    for asker in askers:
        asker.start()
        time.sleep(0.07)
    num_looks = 0
    while any(asker.is_alive() for asker in askers):
        assert is_ready(service), service.http.get("/ready").text
        num_looks = sum(r.disconnected for r in engine.requests)
        time.sleep(0.02)
    assert num_looks >= 3, "no look was given up: this test shows nothing"
    assert live(service) == version
