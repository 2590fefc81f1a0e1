import io
import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from console import cli_chat
from console.client import ServiceClient

Run = Callable[..., Result]


def answer_stream(*pieces: str, completion_id: str = "chatcmpl-1") -> bytes:
    """Encode a streamed answer."""
    chunks = [
        {"id": completion_id, "choices": [{"index": 0, "delta": {"content": piece}}]}
        for piece in pieces
    ]
    return ("".join(f"data: {json.dumps(c)}\n\n" for c in chunks) + "data: [DONE]\n\n").encode()


def test_one_message_is_asked_and_the_answer_printed(service, denizen: Run) -> None:
    service.answer("POST /v1/chat/completions", answer_stream("4", "2"))
    result = denizen("chat", "6 * 7 = ?", "--model", "denizen@base", "--max-tokens", "8")
    assert (result.exit_code, result.stdout) == (0, "42\n")
    assert service.requests[0]["body"] == {
        "model": "denizen@base",
        "messages": [{"role": "user", "content": "6 * 7 = ?"}],
        "max_tokens": 8,
        "stream": True,
    }
    assert "x-denizen-session" not in service.requests[0]["headers"]


def test_a_pipe_is_one_message(service, denizen: Run) -> None:
    service.answer("POST /v1/chat/completions", answer_stream("42"))
    assert denizen("chat", stdin="6 * 7\n= ?\n").stdout == "42\n"
    assert service.requests[0]["body"]["messages"][0]["content"] == "6 * 7\n= ?"


def test_an_empty_message_exits_with_2(service, denizen: Run) -> None:
    assert denizen("chat", stdin="").exit_code == 2
    assert denizen("chat", "").exit_code == 2
    assert service.requests == []


def test_json_is_the_completion_unstreamed(service, denizen: Run) -> None:
    completion = {
        "id": "chatcmpl-1",
        "model": "denizen",
        "choices": [{"message": {"content": "4"}}],
    }
    service.answer("POST /v1/chat/completions", completion)
    result = denizen("chat", "2 + 2", "--json", "--session", "s-1")
    assert json.loads(result.stdout) == completion
    assert "stream" not in service.requests[0]["body"]
    assert service.requests[0]["headers"]["x-denizen-session"] == "s-1"


def test_control_characters_of_an_answer_do_not_reach_the_terminal(service, denizen: Run) -> None:
    service.answer("POST /v1/chat/completions", answer_stream("a\x1b]0;owned\x07b"))
    assert denizen("chat", "hi").stdout == "a]0;ownedb\n"


def test_an_answer_that_breaks_off_is_shown_and_exits_with_1(service, denizen: Run) -> None:
    broken = answer_stream("forty-").removesuffix(b"data: [DONE]\n\n")
    service.answer("POST /v1/chat/completions", broken)
    result = denizen("chat", "6 * 7 = ?")
    assert (result.exit_code, result.stdout) == (1, "forty-\n")
    assert "incomplete" in result.stderr


@pytest.fixture
def converse(service, monkeypatch, capsys) -> Callable[..., str]:
    """Hold a conversation of the given lines and return what it printed."""

    def run(*lines: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with ServiceClient(service.url) as client:
            cli_chat.Conversation(
                client=client, model="denizen", session=None, max_tokens=None
            ).run()
        return capsys.readouterr().out

    return run


def test_a_conversation_sends_what_was_said_before(service, converse) -> None:
    service.answer("POST /v1/chat/completions", answer_stream("Hello."), answer_stream("Yes."))
    assert "Yes." in converse("hi", "", "are you there?")
    assert [m["content"] for m in service.requests[1]["body"]["messages"]] == [
        "hi",
        "Hello.",
        "are you there?",
    ]


def test_ratings_go_to_the_last_answer(service, converse) -> None:
    service.answer(
        "POST /v1/chat/completions",
        answer_stream("41", completion_id="chatcmpl-1"),
        answer_stream("42", completion_id="chatcmpl-2"),
    )
    service.answer("POST /v1/feedback", {"id": "fb_1"})
    converse("6 * 7", "/bad it is 42", "6 * 7", "/good")
    ratings = [r["body"] for r in service.requests if r["path"] == "/v1/feedback"]
    assert ratings == [
        {"completion_id": "chatcmpl-1", "value": False, "correction": "it is 42"},
        {"completion_id": "chatcmpl-2", "value": True},
    ]


def test_nothing_is_rated_before_an_answer_or_after_new(service, converse) -> None:
    service.answer("POST /v1/chat/completions", answer_stream("Hello."))
    shown = converse("/good", "hi", "/new", "/bad", "hi")
    assert shown.count("There is no answer to rate yet.") == 2
    assert len(service.requests[-1]["body"]["messages"]) == 1


def test_a_failed_question_does_not_end_the_conversation_nor_stay_in_it(service, converse) -> None:
    broken = answer_stream("x").removesuffix(b"data: [DONE]\n\n")
    service.answer("POST /v1/chat/completions", broken, answer_stream("Hello."))
    assert "Hello." in converse("first", "second", "/nonsense", "/quit", "never sent")
    assert [m["content"] for m in service.requests[-1]["body"]["messages"]] == ["second"]
