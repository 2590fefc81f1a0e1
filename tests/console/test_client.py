import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from console.client import ServiceClient, find_service, is_loopback
from console.errors import NoServiceError, ServiceError

Run = Callable[..., Result]


def closed_port_url() -> str:
    """Return an address that nothing listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_denizen_url_comes_before_the_file_in_the_home(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "service.json").write_text('{"url": "http://127.0.0.1:1", "pid": 7}')
    monkeypatch.delenv("DENIZEN_URL", raising=False)
    assert find_service(tmp_path) == "http://127.0.0.1:1"
    monkeypatch.setenv("DENIZEN_URL", "http://127.0.0.1:2/")
    assert find_service(tmp_path) == "http://127.0.0.1:2"


@pytest.mark.parametrize("content", ["{", "[]", '{"pid": 7}', '"http://127.0.0.1:1"'])
def test_a_damaged_service_file_is_named(monkeypatch, tmp_path: Path, content: str) -> None:
    monkeypatch.delenv("DENIZEN_URL", raising=False)
    (tmp_path / "service.json").write_text(content)
    with pytest.raises(NoServiceError, match=r"service\.json cannot be read"):
        find_service(tmp_path)


def test_no_address_exits_with_3_and_says_how_to_start(monkeypatch, tmp_path, denizen: Run) -> None:
    monkeypatch.delenv("DENIZEN_URL", raising=False)
    monkeypatch.setenv("DENIZEN_HOME", str(tmp_path))
    result = denizen("status")
    assert result.exit_code == 3
    assert f"no Denizen service at {tmp_path}: start it with `denizen serve`" in result.stderr
    assert result.stdout == ""


def test_a_dead_service_exits_with_3_and_names_the_address(monkeypatch, denizen: Run) -> None:
    url = closed_port_url()
    monkeypatch.setenv("DENIZEN_URL", url)
    result = denizen("episodes", "ls")
    assert result.exit_code == 3
    assert result.stderr == f"denizen: no Denizen service at {url}: start it with `denizen serve`\n"


@pytest.mark.parametrize("url", ["not a url", "ftp://127.0.0.1/", "http://[::1", "127.0.0.1:8000"])
def test_an_address_that_is_none_ends_in_one_line(monkeypatch, denizen: Run, url: str) -> None:
    monkeypatch.setenv("DENIZEN_URL", url)
    result = denizen("status")
    assert result.exit_code in (1, 3)
    assert len(result.stderr.splitlines()) == 1


def test_the_services_own_message_is_printed_and_exits_with_1(service, denizen: Run) -> None:
    body = {
        "error": {"message": "no episode ep_1", "type": "x", "param": None, "code": "not_found"}
    }
    service.answer("GET /v1/episodes/ep_1", body, status=404)
    result = denizen("episodes", "show", "ep_1")
    assert (result.exit_code, result.stderr) == (1, "denizen: no episode ep_1\n")


def test_an_error_keeps_status_and_code(service) -> None:
    service.answer("GET /v1/x", {"error": {"message": "later", "code": "unavailable"}}, status=503)
    with ServiceClient(service.url) as client, pytest.raises(ServiceError) as caught:
        client.get("x")
    assert (caught.value.status, caught.value.code) == (503, "unavailable")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"detail": "x"}', b'{"error": "x"}'])
def test_an_error_of_another_server_is_not_taken_for_denizens(service, body: bytes) -> None:
    service.answer("GET /v1/status", body, status=500)
    with ServiceClient(service.url) as client, pytest.raises(ServiceError, match="is it a Denizen"):
        client.get("status")


def test_an_answer_that_is_no_json_is_an_error(service, denizen: Run) -> None:
    service.answer("GET /v1/status", b"<html>hello</html>")
    result = denizen("status")
    assert result.exit_code == 1
    assert "no JSON" in result.stderr


def test_a_list_without_data_is_an_error(service, denizen: Run) -> None:
    service.answer("GET /v1/skills", {"skills": []})
    assert denizen("skills", "ls").exit_code == 1


def test_ids_are_quoted_so_that_they_stay_inside_their_route(service) -> None:
    service.answer("GET /v1/adapters/..%2F..%2Fhealth%3Fx", {"ok": True})
    with ServiceClient(service.url) as client:
        assert client.get("adapters", "../../health?x") == {"ok": True}


def test_unknown_values_do_not_travel(service) -> None:
    service.answer("POST /v1/feedback", {})
    service.answer("GET /v1/tasks", {})
    with ServiceClient(service.url) as client:
        client.post("feedback", body={"value": False, "comment": None})
        client.get("tasks", skill=None, limit=3)
    assert service.requests[0]["body"] == {"value": False}
    assert service.requests[1]["query"] == "limit=3"


def test_the_key_travels_as_bearer_and_only_when_set(service, monkeypatch, denizen: Run) -> None:
    service.answer("GET /v1/skills", {"data": [], "has_more": False, "next": None})
    denizen("skills", "ls")
    monkeypatch.setenv("DENIZEN_API_KEY", "k-7")
    denizen("skills", "ls")
    assert "authorization" not in service.requests[0]["headers"]
    assert service.requests[1]["headers"]["authorization"] == "Bearer k-7"


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(service, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", closed_port_url())
    monkeypatch.setenv("http_proxy", closed_port_url())
    service.answer("GET /v1/status", {"ready": True})
    with ServiceClient(service.url) as client:
        assert client.get("status") == {"ready": True}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.9.9.9", True),
        ("http://[::1]:8000", True),
        ("http://localhost:8000", True),
        ("http://10.0.0.7:8000", False),
        ("http://denizen.example", False),
    ],
)
def test_loopback_addresses_are_told_from_others(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected


def sse(*events: object, done: bool = True) -> bytes:
    """Encode events as a server would, a comment in between."""
    lines = [f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in events]
    return ": ping\n\n".join([*lines, "data: [DONE]\n\n" if done else ""]).encode()


def chunk(text: str) -> dict:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": text}}]}


def test_a_stream_yields_text_and_knows_its_id_and_version(service) -> None:
    empty = {"id": "chatcmpl-1", "choices": []}
    body = sse(chunk("for"), chunk(""), empty, chunk("ty-twö"))
    service.answer("POST /v1/chat/completions", body, headers={"x-denizen-adapter": "base"})
    with ServiceClient(service.url) as client:
        stream = client.stream_chat({"model": "denizen", "messages": []}, session="s-1")
        assert list(stream) == ["for", "ty-twö"]
    assert (stream.text, stream.completion_id, stream.adapter) == (
        "forty-twö",
        "chatcmpl-1",
        "base",
    )
    assert service.requests[0]["body"] == {"model": "denizen", "messages": [], "stream": True}
    assert service.requests[0]["headers"]["x-denizen-session"] == "s-1"


def test_a_stream_that_ends_without_done_is_an_error(service) -> None:
    service.answer("POST /v1/chat/completions", sse(chunk("for"), done=False))
    with ServiceClient(service.url) as client:
        stream = client.stream_chat({})
        with pytest.raises(ServiceError, match="may be incomplete"):
            list(stream)
    assert stream.text == "for"


def test_an_error_event_in_a_stream_carries_its_message(service) -> None:
    event = {"error": {"message": "the engine died", "type": "server_error"}}
    service.answer("POST /v1/chat/completions", sse(chunk("for"), event, done=False))
    with ServiceClient(service.url) as client, pytest.raises(ServiceError, match="the engine died"):
        list(client.stream_chat({}))


def test_a_refused_stream_is_an_error_before_the_first_piece(service) -> None:
    body = {"error": {"message": "the model `x` does not exist"}}
    service.answer("POST /v1/chat/completions", body, status=404)
    with ServiceClient(service.url) as client, pytest.raises(ServiceError, match="does not exist"):
        client.stream_chat({"model": "x"})
