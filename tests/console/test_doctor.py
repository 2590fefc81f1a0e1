"""``denizen doctor`` as a command: what it prints and never prints, and how it exits."""

import subprocess
import sys

import pytest

from doctor import examination
from doctor.examination import CHECKS
from tests.console.homes import Run, everything_in, findings, settings, verdicts
from tests.running import REPOSITORY

READY = {"ready": True, "reasons": [], "url": "http://127.0.0.1:8000", "live": "base"}


def test_a_healthy_installation_passes_and_is_not_changed(healthy, monkeypatch, service, denizen):
    monkeypatch.setenv("DENIZEN_HOME", str(healthy))
    service.answer("GET /v1/status", READY)
    before = everything_in(healthy)
    result = denizen("doctor", "--json")
    assert result.exit_code == 0
    assert list(findings(result)) == list(CHECKS)
    assert verdicts(result) == {}
    assert everything_in(healthy) == before


def test_an_empty_home_without_service_is_no_failure_and_is_not_made(home, denizen: Run):
    result = denizen("doctor")
    assert result.exit_code == 0
    warned = [line for line in result.stdout.splitlines() if line.startswith("warn")]
    assert [line.split("\t")[1] for line in warned] == ["home", "model", "database", "service"]
    assert all("denizen serve" in line for line in warned)
    assert not home.exists()


SECRETS = """
[auth]
admin_keys = ["PLANTED-SECRET"]
[engine]
api_key = "PLANTED-SECRET"
urls = ["http://user:PLANTED-SECRET@127.0.0.1:1"]
"""


@pytest.mark.parametrize(
    "text", [SECRETS, SECRETS + "not toml", SECRETS + "extra_args = ['--api-key=PLANTED-SECRET']"]
)
def test_no_secret_is_ever_printed(home, text, denizen: Run):
    settings(home, text).chmod(0o644)
    for arguments in (["--json"], [], ["--fix"]):
        result = denizen("doctor", *arguments)
        assert "PLANTED-SECRET" not in result.output + str(result.exception)
        assert "127.0.0.1" in result.output or "denizen.toml" in result.output


def test_a_check_that_breaks_is_a_finding_without_its_text(home, monkeypatch, denizen: Run):
    def broken(_: object) -> None:
        raise RuntimeError("PLANTED-SECRET")

    monkeypatch.setitem(examination.CHECKS, "disk", broken)
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    assert "RuntimeError at " in findings(result)["disk"]["detail"]
    assert "PLANTED-SECRET" not in result.output
    assert findings(result)["service"]["verdict"] == "warn"


@pytest.mark.parametrize(
    ("status", "body", "verdict", "mend"),
    [
        (200, READY | {"ready": False, "reasons": ["engine starts"]}, "warn", "wait"),
        (401, {"error": {"message": "no key"}}, "fail", "DENIZEN_API_KEY"),
        (500, {"error": {"message": "broken"}}, "fail", "DENIZEN_URL"),
    ],
)
def test_a_service_that_is_not_well(home, service, status, body, verdict, mend, denizen: Run):
    service.answer("GET /v1/status", body, status=status)
    finding = findings(denizen("doctor", "--json"))["service"]
    assert finding["verdict"] == verdict
    assert mend in finding["mend"]


def test_the_command_itself_exits_with_1_and_shows_no_traceback(tmp_path):
    (tmp_path / "denizen.toml").write_text("[learner]\nrank = 64", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "console.cli", "doctor"],
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", "DENIZEN_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "learner.rank is 64, above engine.max_lora_rank 16" in ended.stdout
    assert ended.stderr == ""
