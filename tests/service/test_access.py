"""Keys: who may chat, and who may move the pointer."""

from hashlib import sha256

import pytest

from agent.access import AuthConfig
from memory.tenants import Caller
from tests.running import ServiceThread, ask

ADMIN = {"authorization": "Bearer admin-key"}
USER = {"x-api-key": "user-key"}


@pytest.fixture
def service(engine, tmp_path):
    auth = {"user_keys": ("user-key",), "admin_keys": ("admin-key",)}
    with ServiceThread(tmp_path, engine.url, {"auth": auth}) as service:
        yield service


def test_without_a_key_only_health_is_answered(service):
    for path in ("/v1/models", "/v1/episodes", "/metrics", "/v1/status"):
        response = service.http.get(path)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert service.http.post("/v1/chat/completions", json=ask("x")).status_code == 401
    assert service.http.get("/health").status_code == 200
    assert service.http.get("/ready").status_code == 200


def test_a_user_chats_and_cannot_review(service):
    assert service.http.post("/v1/chat/completions", json=ask("x"), headers=USER).status_code == 200
    for path in (
        "/v1/adapters/rollback",
        "/v1/adapters/denizen-000001/promote",
        "/v1/cycles",
        "/v1/tasks",
    ):
        response = service.http.post(path, json={}, headers=USER)
        assert response.status_code == 403
        assert "admin key" in response.json()["error"]["message"]
    assert service.http.get("/v1/adapters", headers=USER).status_code == 200


def test_an_admin_reviews(service):
    response = service.http.post("/v1/adapters/rollback", json={}, headers=ADMIN)
    assert response.status_code == 409


def test_a_key_of_which_the_settings_hold_only_the_hash_is_known():
    digest = f"sha256:{sha256(b'a long key').hexdigest()}"
    auth = AuthConfig(user_keys=("user-key",), admin_keys=(digest,), tenants={"acme": ("k",)})
    assert auth.caller_of(b"a long key") == Caller()
    assert auth.caller_of(b"user-key") == Caller(is_admin=False)
    assert auth.caller_of(b"k") == Caller(tenant="acme", is_admin=False)
    for wrong in (digest, digest.removeprefix("sha256:"), "a long ke", ""):
        assert auth.caller_of(wrong.encode()) is None


@pytest.mark.parametrize("key", ["wrong", "", "admin-ke", "admin-key ", "Bearer admin-key"])
def test_a_wrong_key_is_refused_and_never_logged(service, key, tmp_path):
    response = service.http.get("/v1/models", headers={"authorization": f"Bearer {key}x"})
    assert response.status_code == 401
    assert "admin-key" not in response.text


def test_the_clients_key_never_reaches_the_engine(service, engine):
    service.http.post("/v1/chat/completions", json=ask("x"), headers=ADMIN)
    assert "admin-key" not in str(engine.requests[-1].headers)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost.evil.example", 403),
        ("http://localhost:5173", 409),
        ("http://127.0.0.1:8000", 409),
        (None, 409),
    ],
)
def test_without_keys_a_page_of_another_site_changes_nothing(engine, tmp_path, origin, status):
    headers = {"origin": origin} if origin else {}
    with ServiceThread(tmp_path, engine.url) as service:
        answer = service.http.post("/v1/adapters/rollback", json={}, headers=headers)
        assert answer.status_code == status
        assert service.http.get("/v1/models", headers=headers).status_code == 200
