"""How a request finds what answers it, and what is told where nothing can."""

import pytest

from memory.errors import StoreError
from tests.running import ask

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("path", [CHAT, "/s/mine/v1/messages"])
def test_a_completion_is_asked_by_post(service, path):
    response = service.http.get(path)
    assert response.status_code == 405
    assert "POST" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/s//v1/chat/completions", "/s/a/b/v1/chat/completions"])
def test_a_path_without_a_session_is_not_found(service, path):
    assert service.http.post(path, json=ask("x")).status_code == 404


def test_an_error_in_the_program_is_told_in_the_form_of_the_dialect(service, monkeypatch):
    def broken(*_):
        raise RuntimeError("a mistake with a secret in it")

    monkeypatch.setattr(service.parts.gateway, "_open", broken)
    response = service.http.post(CHAT, json=ask("x"))
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "an internal error; the service's log says more"


@pytest.mark.parametrize("stream", [False, True])
def test_a_place_that_cannot_be_found_is_told(service, monkeypatch, stream):
    def unreadable(*_):
        raise StoreError("cannot read the database")

    monkeypatch.setattr(service.parts.gateway._placement, "place_of", unreadable)
    response = service.http.post(CHAT, json=ask("x", stream=stream))
    assert response.status_code == 500
    assert "cannot read" in response.json()["error"]["message"]
