import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]

SKILL: dict[str, Any] = {
    "id": 2,
    "title": "products",
    "created_at": "2026-01-01T00:00:00Z",
    "policy": "learn",
    "task_key": None,
    "num_episodes": 20,
    "num_graded": 12,
    "mean_outcome": 0.31,
    "num_train_tasks": 160,
    "num_heldout_tasks": 40,
    "num_new_signal": 12,
    "missing": ["12 of 16 graded episodes", "a held-out task"],
}


def test_skills_are_listed_with_what_they_miss(service, denizen: Run) -> None:
    page = {"data": [SKILL], "has_more": False, "next": None}
    service.answer("GET /v1/skills", page)
    line = denizen("skills", "ls").stdout.splitlines()[1]
    assert line == (
        "2\tproducts\tlearn\t20\t12\t0.310\t160+40\t12 of 16 graded episodes; a held-out task"
    )
    assert json.loads(denizen("skills", "ls", "--json").stdout) == page


def test_hundreds_of_small_skills_do_not_hide_the_large_ones(
    service, denizen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [SKILL | {"id": n, "num_episodes": 500 if n == 99 else 2} for n in range(1, 101)]
    service.answer("GET /v1/skills", {"data": rows, "has_more": False, "next": None})
    piped = denizen("skills", "ls").stdout.splitlines()[1:]
    assert [line.split("\t")[0] for line in piped[:3]] == ["99", "1", "2"]
    assert len(piped) == 100
    monkeypatch.setattr("console.cli_skills.on_terminal", lambda: True)
    listed = denizen("skills", "ls")
    assert listed.stdout.splitlines()[1:] == piped[:40]
    assert "60 skills, none of them larger, are left out" in listed.stderr
    assert denizen("skills", "ls", "--all").stdout.splitlines()[1:] == piped


def test_a_skill_is_shown(service, denizen: Run) -> None:
    service.answer("GET /v1/skills/2", SKILL)
    assert "num_heldout_tasks  40" in denizen("skills", "show", "2").stdout.splitlines()
    assert json.loads(denizen("skills", "show", "2", "--json").stdout) == SKILL


@pytest.mark.parametrize(
    ("arguments", "change"),
    [
        (("rename", "2", "times tables"), {"title": "times tables"}),
        (("pause", "2"), {"policy": "paused"}),
        (("resume", "2"), {"policy": "learn"}),
        (("lock", "2"), {"policy": "locked"}),
    ],
)
def test_a_skill_is_changed(
    service, denizen: Run, arguments: tuple[str, ...], change: dict[str, str]
) -> None:
    service.answer("PATCH /v1/skills/2", SKILL | change)
    result = denizen("skills", *arguments, "--json")
    assert json.loads(result.stdout) == SKILL | change
    assert service.requests[0]["body"] == change


def test_a_skill_is_shown_with_its_key_terms_and_history(service, denizen: Run) -> None:
    event = {"skill_id": 2, "created_at": "2026-01-01T00:00:00Z", "actor": "person"}
    event |= {"event": "split_from", "other_id": 1, "detail": "3 episodes or tasks"}
    shown = SKILL | {"key_terms": ["multiplication", "factor"], "history": [event]}
    service.answer("GET /v1/skills/2", shown)
    lines = denizen("skills", "show", "2").stdout.splitlines()
    assert any("multiplication" in line for line in lines)
    assert lines[-1].split("\t")[1:] == ["person", "split from", "1", "3 episodes or tasks"]
    assert json.loads(denizen("skills", "show", "2", "--json").stdout) == shown


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (("merge", "2", "5"), "merge", {"into": 5}),
        (("split", "2", "ep_1", "ep_2"), "split", {"episode_ids": ["ep_1", "ep_2"]}),
        (
            ("split", "2", "ep_1", "--title", "mine"),
            "split",
            {"episode_ids": ["ep_1"], "title": "mine"},
        ),
    ],
)
def test_skills_are_merged_and_split(
    service, denizen: Run, arguments: tuple[str, ...], path: str, body: dict[str, Any]
) -> None:
    service.answer(f"POST /v1/skills/2/{path}", SKILL)
    assert json.loads(denizen("skills", *arguments, "--json").stdout) == SKILL
    assert service.requests[0]["body"] == body


RUBRIC: dict[str, Any] = {
    "skill_id": 2,
    "version": 3,
    "text": "Full marks only for a bare number.",
    "is_default": False,
    "history": [{"version": 3, "author": "ada", "created_at": "2026-01-01T00:00:00Z"}],
}


def test_a_rubric_is_shown_with_its_version_and_author(service, denizen: Run) -> None:
    service.answer("GET /v1/skills/2/rubric", RUBRIC)
    said = denizen("skills", "rubric", "2").stdout
    assert said == "version 3 (ada)\n\nFull marks only for a bare number.\n"
    assert json.loads(denizen("skills", "rubric", "2", "--json").stdout) == RUBRIC


def test_a_rubric_is_set_from_a_file(service, denizen: Run, tmp_path) -> None:
    service.answer("PUT /v1/skills/2/rubric", RUBRIC)
    file = tmp_path / "rubric.txt"
    file.write_text(RUBRIC["text"], encoding="utf-8")
    assert denizen("skills", "rubric", "2", "--set", str(file)).exit_code == 0
    assert service.requests[0]["body"] == {"text": RUBRIC["text"]}
    missing = denizen("skills", "rubric", "2", "--set", str(tmp_path / "none"))
    assert (missing.exit_code, len(service.requests)) == (2, 1)


GUIDELINE: dict[str, Any] = {
    "skill_id": 2,
    "version": 2,
    "text": "Answer with the bare number.",
    "history": [
        {"version": n, "author": who, "text": "…", "created_at": "2026-01-01T00:00:00Z"}
        for n, who in ((1, "ada"), (2, "admin"))
    ],
}
NONE_IN_FORCE = GUIDELINE | {"version": None, "text": None}


def test_a_guideline_is_shown_with_its_version_and_author(service, denizen: Run) -> None:
    service.answer("GET /v1/skills/2/guideline", GUIDELINE)
    said = denizen("skills", "guideline", "2").stdout
    assert said == "version 2 (admin)\n\nAnswer with the bare number.\n"
    assert json.loads(denizen("skills", "guideline", "2", "--json").stdout) == GUIDELINE
    service.answer("GET /v1/skills/2/guideline", NONE_IN_FORCE)
    assert denizen("skills", "guideline", "2").stdout == "none is in force\n"


def test_a_guideline_is_approved_from_a_file_or_standard_input_and_withdrawn(
    service, denizen: Run, tmp_path
) -> None:
    service.answer("PUT /v1/skills/2/guideline", GUIDELINE)
    file = tmp_path / "guideline.txt"
    file.write_text("Be brief.", encoding="utf-8")
    denizen("skills", "guideline", "2", "--set", str(file))
    denizen("skills", "guideline", "2", "--set", "-", stdin="Be bare.")
    service.answer("PUT /v1/skills/2/guideline", NONE_IN_FORCE)
    assert denizen("skills", "guideline", "2", "--withdraw").stdout == "none is in force\n"
    sent = [request["body"] for request in service.requests]
    assert sent == [{"text": "Be brief."}, {"text": "Be bare."}, {"text": ""}]


@pytest.mark.parametrize("options", [("--set", "-"), ("--set", "-", "--withdraw")])
def test_a_guideline_is_withdrawn_by_no_accident(
    service, denizen: Run, options: tuple[str, ...]
) -> None:
    result = denizen("skills", "guideline", "2", *options, stdin=" \n")
    assert (result.exit_code, len(service.requests)) == (2, 0)
