import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

Run = Callable[..., Result]

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "url": "http://127.0.0.1:8000",
    "live": "denizen-000002",
    "previous": "denizen-000001",
    "engine": {"state": "ready", "reason": None},
    "ready": True,
    "reasons": [],
    "counts": {"episodes": 40, "calls": 41, "graded": 12, "tasks": 200},
    "learnable": {
        "window_episodes": 40,
        "sampled_tokens": 1000,
        "learnable_tokens": 970,
        "share": 0.97,
        "not_learnable": {"cancelled": 20, "retried": 10},
    },
    "skills": [
        {
            "id": 1,
            "title": "single-digit products",
            "missing": ["12 of 16 graded episodes"],
            "num_new_signal": 12,
        },
        {"id": 2, "title": "letter counting", "missing": [], "num_new_signal": 30},
    ],
    "running": None,
    "progress": None,
    "failed_jobs": {},
    "next_check_in_s": 40.2,
    "last_cycle": {
        "id": "cycle_1",
        "state": "no_signal",
        "created_at": "2026-01-01T00:00:00Z",
        "reason": "schedule",
        "end_reason": "every group's rewards were equal",
    },
}


def test_status_says_what_is_live_and_what_is_missing(service, denizen: Run) -> None:
    service.answer("GET /v1/status", STATUS)
    result = denizen("status")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert "live        denizen-000002 (before it: denizen-000001)" in lines
    assert "record      40 episodes, 41 calls, 12 graded, 200 tasks" in lines
    assert (
        "learnable   97.0% of 1000 tokens in the newest 40 episodes; not 20 cancelled, 10 retried"
        in lines
    )
    assert "learning    no cycle runs; next check in 40 s" in lines
    assert "last cycle  cycle_1 no_signal: every group's rewards were equal" in lines
    assert "1\tsingle-digit products\t12\t12 of 16 graded episodes" in lines
    assert "2\tletter counting\t30\tnothing" in lines


def test_status_says_why_it_is_not_ready_and_what_runs(service, denizen: Run) -> None:
    running = {"id": "cycle_2", "created_at": "2026-01-01T00:00:00Z", "reason": "skill 2 is ready"}
    changed = {
        "ready": False,
        "reasons": ["the engine restarts", "live adapter not loaded"],
        "engine": {"state": "restarting", "reason": "exit code -9"},
        "running": running,
        "progress": {"phase": "practising", "step": 3, "num_steps": 12},
        "failed_jobs": {"learn": {"at": "2026-01-01T00:00:00Z", "error": "disk full"}},
        "last_cycle": None,
        "skills": [],
    }
    service.answer("GET /v1/status", STATUS | changed)
    shown = denizen("status").stdout
    assert "no: the engine restarts; live adapter not loaded" in shown
    assert "restarting: exit code -9" in shown
    assert "cycle_2 since " in shown and "; step 3 of 12: practising" in shown
    assert "job learn fails  disk full" in shown
    assert "none yet" in shown


def test_status_shows_what_each_judge_has_and_lacks(service, denizen: Run) -> None:
    agreement = {"kappa": 0.8, "low": 0.714, "high": 0.88}
    judge = {
        "skill_id": 2,
        "grader": "judge",
        "version": "score/1",
        "num_pairs": 61,
        "min_pairs": 30,
        "agreement": agreement,
        "is_trusted": True,
        "missing": [],
    }
    unknown = {"kappa": None, "low": None, "high": None}
    other = judge | {"skill_id": 3, "num_pairs": 12, "agreement": unknown, "is_trusted": False}
    other["missing"] = ["12 of 30 pairs", "0 of 12 planted answers judged"]
    service.answer("GET /v1/status", STATUS | {"judges": [judge, other]})
    lines = denizen("status").stdout.splitlines()
    assert "skill\tjudge\tversion\tpairs\tkappa\tinterval\tmay teach" in lines
    assert "2\tjudge\tscore/1\t61 of 30\t0.800\t0.71 to 0.88\tyes" in lines
    assert (
        "3\tjudge\tscore/1\t12 of 30\t-\t-\tno: 12 of 30 pairs; 0 of 12 planted answers judged"
        in lines
    )


def test_json_is_the_services_document(service, denizen: Run) -> None:
    service.answer("GET /v1/status", STATUS)
    assert json.loads(denizen("status", "--json").stdout) == STATUS


class ConfigError(Exception):
    """Stands for the service's settings error."""


class DenizenError(Exception):
    """Stands for any other error of a start."""


def fake_service(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> list[dict]:
    """Put a ``service`` module in place that keeps what ``serve`` was called with."""
    calls: list[dict] = []

    def serve(**arguments: Any) -> None:
        calls.append(arguments)
        if error is not None:
            raise error

    module = types.ModuleType("service")
    module.serve, module.ConfigError, module.DenizenError = serve, ConfigError, DenizenError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "service", module)
    return calls


def test_serve_passes_on_only_what_was_given(monkeypatch, denizen: Run) -> None:
    calls = fake_service(monkeypatch)
    assert denizen("serve").exit_code == 0
    urls = ("--engine-url", "http://a", "--engine-url", "http://b")
    assert denizen("serve", "--home", "/h", "--port", "0", "--host", "::1", *urls).exit_code == 0
    assert calls == [
        {"home": None, "host": None, "port": None, "engine_urls": None},
        {"home": Path("/h"), "host": "::1", "port": 0, "engine_urls": ["http://a", "http://b"]},
    ]


def test_a_wrong_setting_is_one_line_and_exits_with_2(monkeypatch, denizen: Run) -> None:
    fake_service(monkeypatch, ConfigError("denizen.toml: unknown setting server.prt"))
    result = denizen("serve")
    assert result.exit_code == 2
    assert result.stderr == "denizen: denizen.toml: unknown setting server.prt\n"


def test_a_start_that_fails_is_one_line_and_exits_with_1(monkeypatch, denizen: Run) -> None:
    fake_service(monkeypatch, DenizenError("port 8000 is taken"))
    result = denizen("serve")
    assert (result.exit_code, result.stderr) == (1, "denizen: port 8000 is taken\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("serve", "--port", "70000"),
        ("serve", "--port", "http"),
        ("episodes", "ls", "--limit", "0"),
        ("skills", "show", "products"),
        ("adapters", "show"),
    ],
)
def test_wrong_usage_exits_with_2(denizen: Run, arguments: tuple[str, ...]) -> None:
    assert denizen(*arguments).exit_code == 2


def test_help_names_every_command_and_the_exit_codes(denizen: Run) -> None:
    shown = denizen("--help").stdout
    for word in ("serve", "status", "chat", "episodes", "feedback", "tasks", "skills", "learn"):
        assert word in shown
    for word in ("cycles", "adapters", "doctor", "demo", "Exit codes", "3 no service"):
        assert word in shown


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from console.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "heavy = {'httpx', 'openai', 'torch', 'vllm', 'faiss', 'fastapi', 'numpy', 'service'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_status_says_what_the_judge_did_and_what_it_cost(service, denizen: Run) -> None:
    judge = {
        "mode": "asked",
        "model": "denizen@base:9f3a12b4c5d6",
        "waiting": 2,
        "results": {"scored": 5, "judge_timeout": 1},
        "calls": 18,
        "tokens": 9_000,
        "seconds": 61.2,
        "paused": "judge_resting",
        "paused_for_s": 30.0,
    }
    service.answer("GET /v1/status", STATUS | {"judge": judge}, STATUS | {"judge": {"mode": "off"}})
    told = denizen("status").stdout
    assert "denizen@base:9f3a12b4c5d6: 5 scored, 1 judge_timeout; 2 waiting" in told
    assert "18 calls, 9000 tokens, 61 s" in told
    assert "judge_resting for 30 s" in told
    assert "judge       off" in denizen("status").stdout.splitlines()
