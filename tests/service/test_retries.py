"""P-29: a request that is tried again is one request; nothing is learned from it twice."""

import threading
from typing import Any

import openai

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask, wait_until

CHAT = "/v1/chat/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


def episodes(service: ServiceThread) -> list[dict[str, Any]]:
    rows = service.http.get("/v1/episodes").json()["data"]
    return [service.http.get(f"/v1/episodes/{row['id']}").json() for row in rows]


def attempts(service: ServiceThread) -> list[tuple[str, bool, str | None]]:
    """Return of each call of the only episode its status, whether it is learned from, and why."""
    [episode] = episodes(service)
    return [
        (call["status"], call["learnable"], call["not_learnable_reason"])
        for call in episode["calls"]
    ]


def recover_after(engine: FakeEngine, trouble: threading.Event) -> threading.Thread:
    """Heal the engine as soon as the first attempt has failed."""

    def heal() -> None:
        wait_until(lambda: trouble.is_set() or any(one.disconnected for one in engine.requests), 10)
        engine.reset()

    healer = threading.Thread(target=heal)
    healer.start()
    return healer


def test_the_clients_own_retry_after_a_timeout_is_one_training_sample(service, engine):
    engine.control(delay_s=30)
    healer = recover_after(engine, threading.Event())
    url = f"{service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=1, timeout=2.0) as client:
        assert client.chat.completions.create(model="denizen", messages=HELLO).choices
    healer.join()
    assert attempts(service) == [("cancelled", False, "cancelled"), ("ok", True, None)]


def test_the_clients_own_retry_after_a_failure_is_one_training_sample(service, engine):
    engine.control(http_error=500)
    failed = threading.Event()
    healer = recover_after(engine, failed)
    url = f"{service.http.base_url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=1) as client:
        client._client.event_hooks["response"] = [lambda _: failed.set()]
        assert client.chat.completions.create(model="denizen", messages=HELLO).choices
    healer.join()
    assert attempts(service) == [("error", False, "error"), ("ok", True, None)]


def test_two_answered_attempts_with_one_key_are_one_training_sample(service):
    for _ in range(2):
        answer = service.http.post(CHAT, json=ask("once"), headers={"idempotency-key": "k-1"})
        assert answer.status_code == 200
    assert attempts(service) == [("ok", False, "retried"), ("ok", True, None)]
    [episode] = episodes(service)
    fates = [call["token_fates"] for call in episode["calls"]]
    num_tokens = len(episode["calls"][0]["completion_token_ids"])
    assert fates == [{"retried": num_tokens}, {"trained": num_tokens}]


def test_different_keys_are_different_requests(service):
    for key in ("k-1", "k-2"):
        service.http.post(CHAT, json=ask("the same words"), headers={"idempotency-key": key})
    assert len(episodes(service)) == 2
