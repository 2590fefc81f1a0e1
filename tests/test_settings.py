import subprocess
import sys
from hashlib import sha256

import pytest

import settings
from memory.errors import ConfigError
from tests.running import REPOSITORY


def load(tmp_path, toml: str = "", overrides=None):
    (tmp_path / "denizen.toml").write_text(toml, encoding="utf-8")
    return settings.load(tmp_path, overrides)


def test_no_file_gives_the_defaults(tmp_path):
    loaded = settings.load(tmp_path)
    assert (loaded.server.host, loaded.server.port) == ("127.0.0.1", 8000)
    assert loaded.promotion.mode == "auto"


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("DENIZEN_SERVER__PORT", "9002")
    monkeypatch.setenv("DENIZEN_LEARNER__RANK", "8")
    loaded = load(
        tmp_path,
        "[server]\nport = 9001\nhost = '127.0.0.1'\n[learner]\nrank = 4\nalpha = 6",
        {"server": {"port": 9003}},
    )
    assert loaded.server.port == 9003
    assert (loaded.learner.rank, loaded.learner.alpha) == (8, 6)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("[lerner]\nrank = 4", "lerner"),
        ("[learner]\nrnak = 4", "learner.rnak"),
        ("[server]\nport = 'x'", "server.port"),
        ("[server]\nport = 70000", "server.port"),
        ("[promotion]\nmode = 'yolo'", "promotion.mode"),
        ("not toml", "denizen.toml"),
        (
            "[learner]\nrank = 20",
            "learner.rank is 20, above engine.max_lora_rank 16: raise engine.max_lora_rank to 32",
        ),
        ("[engine]\nmax_lora_rank = 20", "engine.max_lora_rank.*1, 8, 16, 32"),
        ("[engine]\nmax_loras = 2", "engine.max_loras is 2, but 3 versions"),
        (
            "[engine]\nmax_loras = 3\npin_sessions = true",
            "engine.max_loras is 3, but 4 versions.*engine.pin_sessions",
        ),
        ("[engine]\nextra_args = ['--port', '1']", "engine.extra_args.*--port is set"),
        ("[server]\nhost = '0.0.0.0'", "auth.admin_keys"),
        ("[auth]\nadmin_keys = ['']", "a key is empty"),
        ("[auth]\nuser_keys = ['a', ' ']", "a key is empty"),
        ("[auth.tenants]\nacme = ['']", "a key is empty"),
        ("[auth]\nuser_keys = ['sha256:ABC']", "64 lowercase hexadecimal digits"),
        (f"[auth]\nuser_keys = ['k', 'sha256:{sha256(b'k').hexdigest()}']", "given twice"),
        ("[auth.tenants]\nacme = []", "tenant 'acme' has no key"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, toml, says):
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, toml)


@pytest.mark.parametrize("name", ["DENIZEN_LERNER__RANK", "DENIZEN_LEARNER__RNAK", "DENIZEN_PORT"])
def test_a_variable_that_is_no_setting_is_an_error_and_not_silence(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "4")
    with pytest.raises(ConfigError, match=name.rpartition("__")[2].lower() + "|" + name):
        settings.load(tmp_path)


def test_two_slots_suffice_where_nothing_is_practised_beside_the_live_version(tmp_path):
    text = "[engine]\nmax_loras = 2\n[learner]\nenabled = false"
    assert load(tmp_path, text).engine.max_loras == 2


def test_a_rank_comes_from_the_environment_too(tmp_path, monkeypatch):
    monkeypatch.setenv("DENIZEN_ENGINE__MAX_LORA_RANK", "32")
    assert settings.load(tmp_path).engine.max_lora_rank == 32


def test_serve_exits_with_2_and_names_the_setting(tmp_path):
    (tmp_path / "denizen.toml").write_text("[learner]\nrnak = 4", encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "console.cli", "serve", "--home", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "learner.rnak" in ended.stderr
    assert "Traceback" not in ended.stderr
