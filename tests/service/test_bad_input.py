"""What nobody should send: each gets a clear error in OpenAI's form, and nothing stops."""

import json

import pytest

from tests.running import ServiceThread, ask

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def service(tmp_path_factory, tiny_model):
    from tests.fake_engine import FakeEngine

    home = tmp_path_factory.mktemp("home")
    with FakeEngine(root=str(tiny_model)) as engine, ServiceThread(home, engine.url) as service:
        yield service


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-5"}, 404, "model"),
        ({"model": "denizen@../../etc"}, 404, "model"),
        ({"model": "denizen@000009"}, 404, "model"),
        ({"model": "denizen@٠٠٠٠٠١"}, 404, "model"),
        ({"model": 7}, 400, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "banana", "content": "x"}]}, 400, "messages.0.role"),
        ({"n": 100_000}, 400, "n"),
        ({"n": 0}, 400, "n"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"temperature": 99}, 400, "temperature"),
        ({"stop": ["x"] * 1000}, 400, "stop"),
        ({"tools": [{}] * 100_000}, 400, "tools"),
        ({"function_call": "auto"}, 400, "function_call"),
        ({"metadata": {"grader": "astrology"}}, 400, "grader"),
        ({"metadata": "x"}, 400, "metadata"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": 5}]},
            400,
            "messages.0.tool_calls",
        ),
    ],
)
def test_a_bad_field_is_refused_by_name(service, fields, status, param):
    response = service.http.post(CHAT, json=ask("x") | fields)
    error = response.json()["error"]
    assert response.status_code == status
    assert param in error["param"]
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "raw",
    [b"", b"no json", b"[1]", b'"x"', b"{" * 10_000, b"[" * 100_000 + b"]" * 100_000, b"\xff"],
)
def test_a_body_that_is_no_json_object_is_a_400(service, raw):
    response = service.http.post(CHAT, content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_could_be_read_but_not_kept_is_a_400(service):
    deep: dict = {}
    for _ in range(300):
        deep = {"x": deep}
    response = service.http.post(CHAT, json=ask("x") | {"chat_template_kwargs": deep})
    assert response.status_code == 400
    assert "deeply" in response.json()["error"]["message"]


def test_a_number_beyond_the_database_is_a_400(service):
    assert service.http.get("/v1/skills/99999999999999999999").status_code == 400
    body = {"skill": 99999999999999999999}
    assert service.http.post("/v1/cycles", json=body).status_code == 400


def test_a_10_mb_body_is_a_413(service):
    response = service.http.post(CHAT, json=ask("x" * 10_000_000))
    assert response.status_code == 413
    assert "max_body_mib" in response.json()["error"]["message"]


def test_a_body_without_a_length_is_counted_as_it_comes(service):
    def pieces():
        for _ in range(10):
            yield b"x" * 1_000_000

    response = service.http.post(CHAT, content=pieces())
    assert response.status_code == 413


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"completion_id": "chatcmpl-unknown", "value": True}, 404),
        ({"episode_id": "ep_unknown", "value": True}, 404),
        ({"completion_id": "a", "episode_id": "b", "value": 1}, 400),
        ({"value": 1}, 400),
        ({"completion_id": "a", "value": 7}, 400),
        ({"completion_id": "a", "value": "good"}, 400),
        ({"completion_id": "a", "value": 1, "stars": 5}, 400),
    ],
)
def test_feedback_on_nothing_or_of_no_value_is_refused(service, body, status):
    response = service.http.post("/v1/feedback", json=body)
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    "name",
    ["../x", "..%2f..%2fetc%2fpasswd", "%2fetc", "denizen-1", "denizen-000001%00", "x" * 300, "."],
)
@pytest.mark.parametrize("verb", ["promote", "approve", "reject"])
def test_an_adapter_name_that_is_none_is_a_404(service, name, verb):
    response = service.http.post(f"/v1/adapters/{name}/{verb}", json={})
    assert response.status_code in {404, 405}
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/tokenize", "/pause", "/v1/nowhere"])
def test_the_engines_own_routes_are_not_reachable_through_the_service(service, path):
    assert service.http.post(path, json={}).status_code == 404


def test_switches_that_are_neither_on_nor_off_are_refused(service):
    response = service.http.post(CHAT, json=ask("x"), headers={"x-denizen-learn": "maybe"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-denizen-learn"


def test_rolling_back_from_base_is_a_conflict(service):
    response = service.http.post("/v1/adapters/rollback", json={})
    assert response.status_code == 409
    assert "nothing to roll back" in response.json()["error"]["message"]


def test_a_cycle_without_tasks_is_refused(service):
    assert service.http.post("/v1/cycles", json={}).status_code == 400
    assert service.http.post("/v1/cycles", json={"skill": 99}).status_code == 404


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1000000", "limit=x", "skill=x", "skill=99999999999999999999"]
)
def test_a_bad_query_is_a_400(service, query):
    response = service.http.get(f"/v1/episodes?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.partition("=")[0]


def test_after_all_that_a_chat_still_works_and_nothing_was_recorded(service):
    assert service.http.get("/v1/episodes").json()["data"] == []
    assert service.http.post(CHAT, json=ask("x")).status_code == 200
    assert json.loads(service.http.get("/ready").text)["ready"]
