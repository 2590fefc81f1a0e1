"""What the doctor finds in a home folder, and what ``--fix`` mends there."""

import json
import shutil
from pathlib import Path

import pytest

import home as house
from agent import base_model
from agent.base_model import FOLDER
from doctor import home_folder
from tests.console.homes import Run, everything_in, findings, settings


def test_a_full_disk_fails(home, monkeypatch, denizen: Run):
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(home_folder.shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    finding = findings(denizen("doctor", "--json"))["disk"]
    assert finding["verdict"] == "fail"
    assert finding["detail"] == f"0.0 GB free at {home.parent}"


def test_a_home_that_is_a_file_is_a_finding_and_no_traceback(home, denizen: Run):
    home.write_text("no folder", encoding="utf-8")
    result = denizen("doctor", "--fix", "--json")
    assert result.exit_code == 1
    assert findings(result)["home"]["detail"] == f"{home} is no folder"


def test_a_home_that_others_may_enter_is_a_warning(healthy, denizen: Run):
    healthy.chmod(0o755)
    assert findings(denizen("doctor", "--json"))["home"]["mend"] == f"chmod 700 {healthy}"


def test_keys_that_others_may_read_are_a_warning_and_are_hidden_by_fix(home, denizen: Run):
    file = settings(home, "[auth]\nadmin_keys = ['k']")
    file.chmod(0o644)
    assert findings(denizen("doctor", "--json"))["secrets"]["verdict"] == "warn"
    found = findings(denizen("doctor", "--fix", "--json"))
    assert "fixed secrets" in found
    assert found["secrets"]["verdict"] == "ok"
    assert file.stat().st_mode & 0o777 == 0o600


def test_settings_without_keys_may_be_read_by_others(home, denizen: Run):
    file = settings(home, "[server]\nlog_level = 'debug'\n[auth]\nadmin_keys = []")
    file.chmod(0o644)
    assert findings(denizen("doctor", "--fix", "--json"))["secrets"]["verdict"] == "ok"
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.fixture
def leftovers(healthy) -> list[Path]:
    made = [healthy / "adapters/.staging-x", healthy / f"models/.{FOLDER}-x", healthy / "work"]
    for folder in made:
        folder.mkdir(parents=True)
        (folder / "half").write_bytes(b"x")
    (healthy / "service.json").write_text("{}", encoding="utf-8")
    (healthy / "adapters/.orphan-denizen-000001-1").mkdir()
    return [*made, healthy / "service.json"]


def test_leftovers_of_a_killed_service_are_cleared_by_fix_and_nothing_else(
    healthy, leftovers, denizen: Run
):
    finding = findings(denizen("doctor", "--json"))["leftovers"]
    assert finding["verdict"] == "warn"
    assert all(str(path.relative_to(healthy)) in finding["detail"] for path in leftovers)
    before = everything_in(healthy)
    assert "fixed leftovers" in findings(denizen("doctor", "--fix", "--json"))
    gone = {line for line in before if any(f"{path.name}" in line for path in leftovers)}
    assert len(gone) == 4
    assert everything_in(healthy) == (before - gone) | {"denizen.lock 0"}
    assert (healthy / "adapters/.orphan-denizen-000001-1").is_dir()


def test_nothing_is_cleared_while_a_service_runs(healthy, leftovers, denizen: Run):
    with house.lock(healthy):
        found = findings(denizen("doctor", "--fix", "--json"))
        assert "fixed leftovers" not in found
        assert found["leftovers"]["verdict"] == "ok"
        assert all(path.exists() for path in leftovers)


def test_fix_makes_the_home_and_prepares_the_model(home, denizen: Run):
    result = denizen("doctor", "--fix", "--json")
    assert result.exit_code == 0
    found = findings(result)
    assert {"fixed home", "fixed model"} <= found.keys()
    assert home.stat().st_mode & 0o777 == 0o700
    assert (found["home"]["verdict"], found["model"]["verdict"]) == ("ok", "ok")
    again = findings(denizen("doctor", "--fix", "--json"))
    assert not any(name.startswith("fixed") for name in again)


def test_a_fix_that_fails_says_so(home, monkeypatch, denizen: Run):
    def full(gguf: Path, out: Path) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(base_model, "_convert", full)
    result = denizen("doctor", "--fix", "--json")
    assert result.exit_code == 1
    failed = [f for f in json.loads(result.stdout)["data"] if f["verdict"] == "fail"]
    assert [f["name"] for f in failed] == ["model"]
    assert "disk full" in failed[0]["detail"]
