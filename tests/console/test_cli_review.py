import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]


def row(number: int) -> dict[str, Any]:
    return {
        "id": f"ep_{number}",
        "created_at": "2026-01-01T00:00:00Z",
        "skill": 2,
        "task_text": "What is\n3 times 4?",
        "priority": 1.25,
        "reasons": ["judge says 0.9, check 0", "the skill has 12 of 30 pairs"],
    }


EPISODE = {
    "calls": [
        {
            "request": {"messages": [{"role": "user", "content": "What is 3 times 4?"}]},
            "message": {"role": "assistant", "content": "It is\x1b[31m 13"},
        },
        {"request": {"messages": []}, "message": None},
    ]
}


@pytest.fixture
def queue(service):
    service.answer("GET /v1/episodes/review", {"data": [row(1), row(2)], "has_more": False})
    for number in (1, 2):
        service.answer(f"GET /v1/episodes/ep_{number}", EPISODE)
    service.answer("POST /v1/feedback", {"id": "fb_1", "changed": True})
    return service


def given(service) -> list[dict[str, Any]]:
    return [one["body"] for one in service.requests if one["path"] == "/v1/feedback"]


def test_in_a_pipe_the_queue_is_a_table(queue, denizen: Run) -> None:
    result = denizen("episodes", "review", "--limit", "7")
    head, first, _ = result.stdout.splitlines()
    assert head == "id\twhen\tskill\tpriority\twhy\ttask"
    assert first.endswith(
        "judge says 0.9, check 0; the skill has 12 of 30 pairs\tWhat is 3 times 4?"
    )
    assert queue.requests[0]["query"] == "limit=7"


def test_json_is_what_the_service_sent(queue, denizen: Run) -> None:
    assert json.loads(denizen("episodes", "review", "--json").stdout)["data"] == [row(1), row(2)]


def test_a_person_answers_skips_and_is_asked_again_after_a_slip(queue, denizen: Run) -> None:
    result = denizen("episodes", "review", "--ask", stdin="nonsense\nbad it is 12\n\n")
    assert result.exit_code == 0, result.output
    assert given(queue) == [{"episode_id": "ep_1", "value": False, "comment": "it is 12"}]
    assert "'nonsense' is neither good, bad nor a number" in result.stdout
    assert "answered: It is[31m 13" in result.stdout
    assert result.stdout.endswith("1 of 2 answered.\n")


@pytest.mark.parametrize("stdin", ["q\n", ""])
def test_stopping_keeps_what_was_said(queue, denizen: Run, stdin: str) -> None:
    result = denizen("episodes", "review", "--ask", stdin=stdin)
    assert result.exit_code == 0
    assert given(queue) == []
    assert result.stdout.endswith("0 of 2 answered.\n")


def test_an_empty_queue_says_so(service, denizen: Run) -> None:
    service.answer("GET /v1/episodes/review", {"data": [], "has_more": False})
    assert denizen("episodes", "review").stdout == "No answer waits for a person's word.\n"
