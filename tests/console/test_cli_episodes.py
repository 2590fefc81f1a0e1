import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]

ROW: dict[str, Any] = {
    "id": "ep_1",
    "created_at": "2026-01-01T00:00:00Z",
    "source": "chat",
    "task_text": "What is\n3 times 4?",
    "skill": 2,
    "session": None,
    "outcome": {"value": 0.25, "provenance": "check", "unscored_reason": None},
    "adapter": "base",
    "num_calls": 1,
}

UNSCORED = ROW | {
    "id": "ep_0",
    "skill": None,
    "outcome": {"value": None, "provenance": None, "unscored_reason": "no_reference"},
}

EPISODE: dict[str, Any] = {
    **ROW,
    "calls": [
        {
            "id": "chatcmpl-1",
            "parent": None,
            "adapter": "base",
            "status": "ok",
            "request": {"messages": [{"role": "user", "content": "What is\n3 times 4?"}]},
            "message": {"role": "assistant", "content": "It is 12\x1b[31m."},
            "prompt_token_ids": [1, 2, 3],
            "completion_token_ids": [4, 5],
            "not_learnable_reason": None,
        },
        {
            "id": "chatcmpl-2",
            "parent": "chatcmpl-1",
            "adapter": "base",
            "status": "cancelled",
            "request": {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}]}]},
            "message": None,
            "prompt_token_ids": None,
            "completion_token_ids": None,
            "not_learnable_reason": "cancelled",
        },
    ],
    "grades": [
        {
            "kind": "check",
            "grader": "contains",
            "value": 0.25,
            "explanation": "'12' found in 9 characters",
            "unscored_reason": None,
        }
    ],
    "past_grades": [
        {
            "created_at": "2026-01-01T00:00:00Z",
            "superseded_at": "2026-01-02T00:00:00Z",
            "grade": {
                "kind": "person",
                "grader": "user",
                "value": 1.0,
                "explanation": "fine",
                "unscored_reason": None,
            },
        }
    ],
    "trained_on": [
        {
            "version": "denizen-000002",
            "outcome_value": 1.0,
            "outcome_provenance": "person",
            "outcome_changed": True,
        }
    ],
    "feedback": [
        {
            "created_at": "2026-01-02T00:00:00Z",
            "value": 0.0,
            "source": "user",
            "comment": "too long",
            "correction": "12",
        }
    ],
}


def test_a_list_is_a_line_an_episode(service, denizen: Run) -> None:
    page = {"data": [ROW, UNSCORED | {"outcome": None}, UNSCORED], "has_more": True, "next": "ep_0"}
    service.answer("GET /v1/episodes", page)
    result = denizen("episodes", "ls", "--skill", "2", "--source", "chat", "--after", "ep_9")
    assert service.requests[0]["query"] == "skill=2&source=chat&limit=20&after=ep_9"
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert rows[0][4:7] == ["task", "outcome", "by"]
    assert rows[1][3:] == ["2", "What is 3 times 4?", "0.250", "check", "base", "1"]
    assert rows[2][5:7] == ["-", "-"]
    assert rows[3][5:7] == ["-", "no_reference"]


def test_json_of_a_list_is_the_services_page(service, denizen: Run) -> None:
    page = {"data": [ROW], "has_more": False, "next": None}
    service.answer("GET /v1/episodes", page)
    assert json.loads(denizen("episodes", "ls", "--json").stdout) == page


def test_an_episode_shows_calls_grades_and_feedback(service, denizen: Run) -> None:
    service.answer("GET /v1/episodes/ep_1", EPISODE)
    shown = denizen("episodes", "show", "ep_1").stdout
    assert "answered   It is 12[31m." in shown
    assert "tokens     3 + 2" in shown
    assert "tokens     ? + ?" in shown
    assert "learnable  yes" in shown
    assert "learnable  cancelled" in shown
    assert "chatcmpl-2\tchatcmpl-1\tbegins\tcancelled\tbase\t? + ?\tcancelled" in shown
    assert "check\tcontains\t0.250\t'12' found in 9 characters" in shown
    assert "\t0.000\tuser\ttoo long\t12" in shown
    assert "\tperson\tuser\t1.000\tfine" in shown
    assert "denizen-000002\t1.000\tperson\tyes" in shown


def test_json_of_an_episode_is_the_services_document(service, denizen: Run) -> None:
    service.answer("GET /v1/episodes/ep_1", EPISODE)
    assert json.loads(denizen("episodes", "show", "ep_1", "--json").stdout) == EPISODE


@pytest.mark.parametrize(
    ("answer_id", "value", "body"),
    [
        ("chatcmpl-1", "good", {"completion_id": "chatcmpl-1", "value": True}),
        ("chatcmpl-1", "False", {"completion_id": "chatcmpl-1", "value": False}),
        ("ep_1", "0.25", {"episode_id": "ep_1", "value": 0.25}),
        ("ep_1", "1", {"episode_id": "ep_1", "value": 1.0}),
    ],
)
def test_feedback_names_a_completion_or_an_episode(
    service, denizen: Run, answer_id: str, value: str, body: dict[str, Any]
) -> None:
    answer = {"id": "fb_1", "episode_id": "ep_1", "outcome": {"value": 1.0, "provenance": "person"}}
    service.answer("POST /v1/feedback", answer)
    result = denizen("feedback", answer_id, value, "--json")
    assert json.loads(result.stdout) == answer
    assert service.requests[0]["body"] == body
    assert type(service.requests[0]["body"]["value"]) is type(body["value"])


def test_feedback_carries_comment_and_correction(service, denizen: Run) -> None:
    service.answer("POST /v1/feedback", {"id": "fb_1", "episode_id": "ep_1", "outcome": None})
    result = denizen("feedback", "ep_1", "bad", "--comment", "no", "--correction", "12")
    assert result.exit_code == 0
    assert service.requests[0]["body"] == {
        "episode_id": "ep_1",
        "value": False,
        "comment": "no",
        "correction": "12",
    }


@pytest.mark.parametrize("value", ["1.5", "nan", "inf", "great", ""])
def test_a_value_outside_zero_to_one_exits_with_2(service, denizen: Run, value: str) -> None:
    assert denizen("feedback", "ep_1", value).exit_code == 2
    assert service.requests == []
