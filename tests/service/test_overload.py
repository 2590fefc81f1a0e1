"""More requests than the service may have in flight: refused at once, and nothing is lost."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory import group_write
from tests.running import ServiceThread, ask, wait_until

CHAT = "/v1/chat/completions"


@pytest.fixture
def service(engine, tmp_path):
    with ServiceThread(tmp_path, engine.url, {"server": {"max_in_flight": 4}}) as service:
        yield service


def test_overload_is_answered_at_once_and_every_answer_is_recorded(service, engine):
    engine.control(delay_s=0.5)
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: service.http.post(CHAT, json=ask(f"{n}")), range(12)))
    good = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert (len(good), len(refused)) == (4, 8)
    assert all(answer.headers["retry-after"] == "1" for answer in refused)
    assert all(answer.elapsed.total_seconds() < 0.4 for answer in refused)
    engine.reset()
    assert service.http.post(CHAT, json=ask("afterwards")).status_code == 200
    assert service.http.get("/v1/status").json()["counts"]["calls"] == 5
    shown = service.http.get("/metrics").text
    assert "denizen_requests_in_flight 0.0" in shown
    assert "denizen_records_waiting 0.0" in shown


def test_a_writer_that_stands_still_holds_answers_back_and_refuses_the_next(service, monkeypatch):
    monkeypatch.setattr(group_write, "MAX_AHEAD", 2)
    let_go = threading.Event()
    service.parts.store.database.submit(lambda db: let_go.wait(10))
    ahead = [service.http.post(CHAT, json=ask(f"ahead {n}")) for n in range(2)]
    assert [one.status_code for one in ahead] == [200, 200]  # the journal keeps them
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(service.http.post, CHAT, json=ask(f"{n}")) for n in range(4)]
        try:
            wait_until(lambda: service.parts.in_flight.is_full)
            refused = service.http.post(CHAT, json=ask("one more"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert not any(one.done() for one in waiting)  # no answer is out before it is safe
        finally:
            let_go.set()
        assert [one.result().status_code for one in waiting] == [200] * 4
    assert service.http.get("/v1/status").json()["counts"]["calls"] == 6


def test_what_an_answer_that_is_not_in_the_file_yet_continues_waits_for_it(service):
    let_go = threading.Event()
    service.parts.store.database.submit(lambda db: let_go.wait(10))
    first = service.http.post(CHAT, json=ask("first"))
    said = first.json()["choices"][0]["message"]
    body = ask("second")
    body["messages"] = [*ask("first")["messages"], said, *body["messages"]]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(service.http.post, CHAT, json=body)
        wait_until(lambda: service.parts.in_flight.num == 1)
        let_go.set()
        joined = second.result().headers["x-denizen-episode-id"]
    assert joined == first.headers["x-denizen-episode-id"]
    shown = service.http.get(f"/v1/episodes/{joined}").json()
    assert [call["edge"] for call in shown["calls"]] == [None, "continuation"]


def test_a_stream_counts_until_its_last_byte(service, engine):
    engine.control(stall_after_chunks=2)
    with service.http.stream("POST", CHAT, json=ask("stream", stream=True)) as stream:
        next(stream.iter_bytes())
        assert service.parts.in_flight.num == 1
    wait_until(lambda: service.parts.in_flight.num == 0, 2.0)
