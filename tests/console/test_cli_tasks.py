import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]

COUNTS = {"imported": 2, "known": 0, "train": 1, "heldout": 1}


def test_a_file_is_imported_line_by_line(service, denizen: Run, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    tasks = [{"prompt": "3 * 4 = ?", "reference": "12"}, {"messages": [], "grader": "exact"}]
    file.write_text("\n".join(json.dumps(task) for task in tasks) + "\n\n", encoding="utf-8")
    service.answer("POST /v1/tasks", COUNTS)
    result = denizen("tasks", "import", str(file), "--json")
    assert json.loads(result.stdout) == COUNTS
    assert service.requests[0]["body"] == {"tasks": tasks}


def test_generated_tasks_carry_their_settings(service, denizen: Run) -> None:
    service.answer("POST /v1/tasks", COUNTS)
    options = ("--n", "20", "--seed", "7", "--set", "min_digits=1", "--set", "words=a=b")
    result = denizen("tasks", "import", "--from", "reasoning-gym:products", *options)
    assert result.exit_code == 0
    assert "imported  2" in result.stdout.splitlines()
    assert service.requests[0]["body"] == {
        "from": "reasoning-gym:products",
        "n": 20,
        "seed": 7,
        "set": {"min_digits": 1, "words": "a=b"},
    }


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("missing.jsonl",),
        ("--from", "reasoning-gym:x", "--set", "digits"),
        ("--from", "reasoning-gym:x", "--set", "=1"),
        ("--from", "reasoning-gym:x", "--n", "0"),
    ],
)
def test_wrong_imports_exit_with_2_and_send_nothing(
    service, denizen: Run, arguments: tuple[str, ...]
) -> None:
    assert denizen("tasks", "import", *arguments).exit_code == 2
    assert service.requests == []


def test_a_bad_line_is_named_and_nothing_is_imported(service, denizen: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"prompt": \n', encoding="utf-8")
    result = denizen("tasks", "import", str(file))
    assert result.exit_code == 2
    assert "t.jsonl:3" in "".join(result.stderr.split())  # the box may wrap the path
    assert service.requests == []


def test_tasks_are_listed(service, denizen: Run) -> None:
    task: dict[str, Any] = {
        "id": "task_1",
        "created_at": "2026-01-01T00:00:00Z",
        "messages": [{"role": "system", "content": "x"}, {"role": "user", "content": "3 * 4 = ?"}],
        "reference": None,
        "grader": "contains",
        "split": "heldout",
        "origin": "api",
        "skill_id": 2,
    }
    page = {"data": [task], "has_more": False, "next": None}
    service.answer("GET /v1/tasks", page)
    lines = denizen("tasks", "ls", "--skill", "2").stdout.splitlines()
    assert lines[1] == "task_1\theldout\t2\t3 * 4 = ?\t-\tcontains\tapi"
    assert json.loads(denizen("tasks", "ls", "--json").stdout) == page
