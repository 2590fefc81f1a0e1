"""P-28: a record that cannot be written breaks no answer, is counted and shown, and comes once."""

import re

from memory import call_rows, journal
from tests.running import ServiceThread, ask, wait_until

CHAT = "/v1/chat/completions"


def dropped(service: ServiceThread) -> float:
    text = service.http.get("/metrics").text
    found = re.search(r"^denizen_records_dropped_total (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_what_cannot_be_written_is_said_and_comes_once_after_the_repair(service):
    database = service.parts.store.database
    assert service.http.post(CHAT, json=ask("before")).status_code == 200
    already = dropped(service)
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))
    full = [service.http.post(CHAT, json=ask("x " * 5000, stream=s)) for s in (False, True)]
    assert [response.status_code for response in full] == [200, 200]
    assert full[1].text.endswith("data: [DONE]\n\n")
    wait_until(lambda: not service.http.get("/ready").json()["ready"])
    assert "degraded" in service.http.get("/ready").json()["reasons"][0]
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    assert service.http.post(CHAT, json=ask("after")).status_code == 200
    wait_until(lambda: service.http.get("/ready").json()["ready"])
    rows = service.http.get("/v1/episodes").json()["data"]
    texts = [row["task_text"].strip() for row in rows]
    assert sorted(texts) == ["after", "before", *[("x " * 5000).strip()] * 2]
    assert [row["num_calls"] for row in rows] == [1, 1, 1, 1]
    assert dropped(service) == already


def test_what_is_not_kept_is_counted_and_shown(service, monkeypatch):
    already = dropped(service)
    monkeypatch.setattr(journal, "MAX_ENTRY_BYTES", 0)  # it has to wait for its commit
    database = service.parts.store.database
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))
    assert service.http.post(CHAT, json=ask("x " * 5000)).status_code == 200
    assert dropped(service) == already + 1
    assert "degraded" in service.http.get("/ready").json()["reasons"][0]
    database.write(lambda db: db.execute("PRAGMA max_page_count = 1000000"))
    assert service.http.post(CHAT, json=ask("after")).status_code == 200
    assert [row["task_text"] for row in service.http.get("/v1/episodes").json()["data"]] == [
        "after"
    ]


def test_every_failed_call_has_a_record_that_says_so(service, engine):
    for switches in ({"http_error": 500}, {"http_error": 400}, {"cut_after_chunks": 0}):
        engine.reset()
        engine.control(**switches)
        service.http.post(CHAT, json=ask("fails", stream=True))
    rows = service.http.get("/v1/episodes").json()["data"]
    shown = [service.http.get(f"/v1/episodes/{row['id']}").json() for row in rows]
    calls = [call for one in shown for call in one["calls"]]
    assert len(calls) == 3
    assert {call["status"] for call in calls} == {"error"}
    assert all(call["error"] and not call["learnable"] for call in calls)


def test_a_record_that_cannot_be_written_for_an_unforeseen_reason_is_counted_with_its_cause(
    service, monkeypatch, caplog
):
    already = dropped(service)

    def broken(*arguments: object) -> None:
        raise TypeError("no column for that")

    monkeypatch.setattr(call_rows, "encode", broken)
    assert service.http.post(CHAT, json=ask("lost")).status_code == 200
    wait_until(lambda: dropped(service) == already + 1)
    [told] = [one for one in caplog.records if "not recorded: no column" in one.getMessage()]
    assert told.exc_info is not None
    monkeypatch.undo()
    assert service.http.post(CHAT, json=ask("after")).status_code == 200
    assert [row["task_text"] for row in service.http.get("/v1/episodes").json()["data"]] == [
        "after"
    ]


def test_a_record_that_cannot_even_be_begun_leaves_nothing_running(service, monkeypatch):
    placement = service.parts.gateway._placement

    def broken(*arguments: object) -> None:
        raise TypeError("a text that cannot be cleaned")

    monkeypatch.setattr(placement._privacy, "kept", broken)
    assert service.http.post(CHAT, json=ask("lost")).status_code == 500
    assert not placement._running._places
    assert not service.parts.recorder._background
