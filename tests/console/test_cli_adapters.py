import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]

VERSION: dict[str, Any] = {
    "id": "denizen-000007",
    "parent": "denizen-000006",
    "created_at": "2026-01-01T00:00:00Z",
    "base_digest": "9f",
    "sha256": "41",
    "rank": 16,
    "alpha": 32,
    "target_modules": ["q_proj", "v_proj"],
    "status": "live",
    "origin": "cycle",
    "cycle_id": "cycle_1",
    "size_bytes": 19_500_000,
    "live": True,
}
MOVED = {"moved": True, "from": "denizen-000006", "to": "denizen-000007"}


def test_versions_are_listed_with_the_live_one_marked(service, denizen: Run) -> None:
    other = VERSION | {"id": "denizen-000006", "live": False, "status": "retired", "cycle_id": None}
    page = {"data": [VERSION, other], "has_more": False, "next": None}
    service.answer("GET /v1/adapters", page)
    rows = [line.split("\t") for line in denizen("adapters", "ls").stdout.splitlines()]
    assert rows[1][:4] == ["denizen-000007", "live", "live", "denizen-000006"]
    assert rows[1][5:] == ["cycle", "cycle_1", "16", "19.5"]
    assert rows[2][:3] == ["denizen-000006", "-", "retired"]
    assert json.loads(denizen("adapters", "ls", "--json").stdout) == page


def test_a_version_is_shown(service, denizen: Run) -> None:
    service.answer("GET /v1/adapters/denizen-000007", VERSION)
    lines = denizen("adapters", "show", "denizen-000007").stdout.splitlines()
    assert "target_modules  q_proj, v_proj" in lines


@pytest.mark.parametrize(
    ("arguments", "path", "body"),
    [
        (("promote", "denizen-000007"), "denizen-000007/promote", {}),
        (
            ("promote", "denizen-000007", "--force", "--reason", "known good"),
            "denizen-000007/promote",
            {"force": True, "reason": "known good"},
        ),
        (("rollback",), "rollback", {}),
        (
            ("approve", "denizen-000007", "--sha256", "41", "--reason", "seen"),
            "denizen-000007/approve",
            {"sha256": "41", "reason": "seen"},
        ),
        (
            ("rollback", "--to", "base", "--reason", "worse on letters"),
            "rollback",
            {"to": "base", "reason": "worse on letters"},
        ),
    ],
)
def test_moves_of_the_pointer(
    service, denizen: Run, arguments: tuple[str, ...], path: str, body: dict[str, Any]
) -> None:
    service.answer(f"POST /v1/adapters/{path}", MOVED)
    assert json.loads(denizen("adapters", *arguments, "--json").stdout) == MOVED
    assert service.requests[0]["body"] == body


def test_a_move_that_was_none_is_said(service, denizen: Run) -> None:
    still = {"moved": False, "from": "denizen-000007", "to": "denizen-000007"}
    service.answer("POST /v1/adapters/denizen-000007/promote", MOVED, still)
    first, second = (denizen("adapters", "promote", "denizen-000007").stdout for _ in range(2))
    assert first == "denizen-000007 is live (before: denizen-000006)\n"
    assert second == "denizen-000007 is live already; nothing moved\n"


def test_force_without_a_reason_exits_with_2(service, denizen: Run) -> None:
    assert denizen("adapters", "promote", "denizen-000007", "--force").exit_code == 2
    assert service.requests == []


def test_a_rejection_shows_what_became_of_the_version(service, denizen: Run) -> None:
    rejected = VERSION | {"status": "rejected", "live": False}
    service.answer("POST /v1/adapters/denizen-000007/reject", rejected)
    options = ("--sha256", "41", "--reason", "seen", "--json")
    assert json.loads(denizen("adapters", "reject", "denizen-000007", *options).stdout) == rejected
    assert service.requests[0]["body"] == {"sha256": "41", "reason": "seen"}


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_damaged_files_exit_with_1(service, denizen: Run, as_json: tuple[str, ...]) -> None:
    answer = {"ok": False, "problems": ["adapter_model.safetensors: sha256 differs"]}
    service.answer("GET /v1/adapters/denizen-000007/verify", answer)
    result = denizen("adapters", "verify", "denizen-000007", *as_json)
    assert result.exit_code == 1
    assert "sha256 differs" in result.stdout


def test_whole_files_exit_with_0(service, denizen: Run) -> None:
    service.answer("GET /v1/adapters/denizen-000007/verify", {"ok": True, "problems": []})
    result = denizen("adapters", "verify", "denizen-000007")
    assert (result.exit_code, result.stdout) == (0, "denizen-000007 is as recorded\n")


def test_without_an_id_every_version_is_verified(service, denizen: Run) -> None:
    problem = "'denizen-000005' is in no database"
    found = {"ok": False, "problems": [problem]}
    service.answer("GET /v1/adapters/verify", {"ok": True, "problems": []}, found)
    whole, damaged = (denizen("adapters", "verify") for _ in range(2))
    assert (whole.exit_code, whole.stdout) == (0, "every version is as recorded\n")
    assert (damaged.exit_code, damaged.stdout) == (1, f"{problem}\n")


def test_a_folder_that_is_no_adapter_is_a_wrong_argument_and_nothing_is_sent(
    service, denizen: Run, tmp_path
) -> None:
    result = denizen("adapters", "import", str(tmp_path))
    assert result.exit_code == 2
    assert "is empty" in result.stderr.replace("\n", "")
    assert service.requests == []


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_an_id_that_would_name_another_route_is_not_sent(service, denizen: Run, name: str) -> None:
    for verb in ("show", "promote", "verify"):
        result = denizen("adapters", verb, name)
        assert (result.exit_code, result.stderr) == (1, f"denizen: {name!r} is no id\n")
    assert service.requests == []
