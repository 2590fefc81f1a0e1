"""Feedback through the whole service: late, once, changed, and as Open WebUI sends it."""

import threading
from typing import Any

import httpx
import pytest

from tests.graders.test_open_webui import CHAT, RATING, with_text
from tests.running import ServiceThread, ask, wait_until


@pytest.fixture
def answered(service: ServiceThread) -> httpx.Response:
    return service.http.post("/v1/chat/completions", json=ask("hi"))


def give(service: ServiceThread, body: dict[str, Any]) -> dict[str, Any]:
    response = service.http.post("/v1/feedback", json=body)
    assert response.status_code == 200, response.text
    said: dict[str, Any] = response.json()
    return said


def episode(service: ServiceThread, episode_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = service.http.get(f"/v1/episodes/{episode_id}").json()
    return shown


def values(service: ServiceThread, episode_id: str) -> list[float]:
    return [one["value"] for one in episode(service, episode_id)["feedback"]]


def outcome(service: ServiceThread, episode_id: str) -> float | None:
    """Return the outcome of all that was said; None while some of it is not digested."""
    shown = episode(service, episode_id)
    is_digested = shown["digested_revision"] == shown["revision"]
    return shown["outcome"]["value"] if is_digested else None


def test_the_same_value_again_changes_nothing(service, answered):
    body = {"completion_id": answered.json()["id"], "value": True}
    first = give(service, body)
    assert first["changed"] is True
    episode_id = first["episode_id"]
    wait_until(lambda: outcome(service, episode_id) == 1.0)
    before = episode(service, episode_id)
    again = give(service, body | {"value": 1.0})
    assert again == first | {"changed": False}
    assert episode(service, episode_id) == before


def test_another_value_replaces_the_first_and_both_stay_in_the_log(service, answered):
    body = {"completion_id": answered.json()["id"], "value": True}
    episode_id = give(service, body)["episode_id"]
    wait_until(lambda: outcome(service, episode_id) == 1.0)
    assert give(service, body | {"value": False})["changed"] is True
    wait_until(lambda: outcome(service, episode_id) == 0.0)
    assert give(service, body)["changed"] is True  # back to the first: a third word, not a repeat
    wait_until(lambda: outcome(service, episode_id) == 1.0)
    assert values(service, episode_id) == [1.0, 0.0, 1.0]
    assert [grade["value"] for grade in episode(service, episode_id)["grades"]] == [1.0]


def test_sources_and_targets_are_opinions_of_their_own(service, answered):
    completion = {"completion_id": answered.json()["id"]}
    whole = {"episode_id": answered.headers["x-denizen-episode-id"]}
    for body in (completion, completion | {"source": "editor"}, whole):
        assert give(service, body | {"value": 1})["changed"] is True
    assert len(values(service, whole["episode_id"])) == 3


def test_a_comment_and_a_correction_that_come_after_the_thumb_are_kept(service, answered):
    body = {"completion_id": answered.json()["id"], "value": 0}
    episode_id = give(service, body)["episode_id"]
    give(service, body | {"comment": "too long", "correction": "hello"})
    assert give(service, body)["changed"] is False
    words = [(f["comment"], f["correction"]) for f in episode(service, episode_id)["feedback"]]
    assert words == [(None, None), ("too long", "hello")]


def test_one_click_that_arrives_many_times_at_once_is_one_opinion(service, answered):
    body, ids = {"completion_id": answered.json()["id"], "value": True}, []

    def click() -> None:
        response = httpx.post(f"{service.http.base_url}/v1/feedback", json=body)
        ids.append(response.json()["id"])

    threads = [threading.Thread(target=click) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1
    assert values(service, answered.headers["x-denizen-episode-id"]) == [1.0]


def test_feedback_comes_late_after_the_episode_was_graded_and_went_on(service):
    body = ask("3 * 4?", metadata={"reference": "99"})
    first = service.http.post("/s/old/v1/chat/completions", json=body)
    episode_id = first.headers["x-denizen-episode-id"]
    wait_until(lambda: outcome(service, episode_id) == 0.0)
    service.http.post("/s/old/v1/chat/completions", json=ask("and 3 * 5?"))
    give(service, {"completion_id": first.json()["id"], "value": True})
    wait_until(lambda: len(episode(service, episode_id)["grades"]) == 2)
    assert values(service, episode_id) == [1.0]
    wait_until(lambda: outcome(service, episode_id) == 0.0)  # a check outranks a person


def test_the_choices_of_one_request_are_rated_apart(service):
    response = service.http.post("/v1/chat/completions", json=ask("two", n=2))
    first = response.json()["id"]
    for completion, value in ((first, True), (f"{first}.1", False)):
        give(service, {"completion_id": completion, "value": value})
    episode_id = response.headers["x-denizen-episode-id"]
    wait_until(lambda: outcome(service, episode_id) == 0.5)


def test_open_webuis_rating_reaches_the_answer_whose_chat_it_forwarded(service):
    """The header is the one that FORWARD_SESSION_INFO_HEADER_CHAT_ID names."""
    headers = {"x-denizen-session": CHAT}
    response = service.http.post("/v1/chat/completions", json=ask("hi"), headers=headers)
    title = ask("Name this chat")
    service.http.post("/v1/chat/completions", json=title, headers=headers)
    text = response.json()["choices"][0]["message"]["content"]
    said = give(service, with_text(text))
    assert said["completion_id"] == response.json()["id"]
    assert said["value"] == 1.0
    assert give(service, with_text(text))["changed"] is False
    down = with_text(text)
    down["data"]["rating"] = -1
    assert give(service, down)["changed"] is True
    assert values(service, said["episode_id"]) == [1.0, 0.0]
    [newest] = episode(service, said["episode_id"])["feedback"][1:]
    assert (newest["source"], newest["call_id"]) == ("open-webui", response.json()["id"])


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (RATING, 404, "x-denizen-session"),
        (RATING | {"type": "arena"}, 400, "rating"),
        (RATING | {"data": {}}, 400, "data.rating"),
        ({"type": "rating", "completion_id": "x", "value": 1}, 400, "data"),
    ],
)
def test_a_rating_of_nothing_known_is_refused_and_says_why(service, body, status, says):
    response = service.http.post("/v1/feedback", json=body)
    assert response.status_code == status
    assert says in response.json()["error"]["message"]
