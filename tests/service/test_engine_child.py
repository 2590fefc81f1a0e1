"""The engine as a child of the service: refused before it starts, killed, and started anew."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from agent import engines, preflight
from tests.agent.stand_in import StandIn, pid_of_child
from tests.running import REPOSITORY, ServiceThread, ask, wait_until
from tests.service.versions import chat, go_live, is_answer_of, live, make_version
from tests.tiny_model import VOCAB_SIZE

SLOW_ENGINE = f"""
import os, threading
from tests.fake_engine import FakeEngine
key = os.environ["VLLM_API_KEY"]
with FakeEngine(port={{port}}, api_key=key, vocab_size={VOCAB_SIZE}, max_loras=4) as engine:
    engine.control(chunk_delay_s=0.5)
    threading.Event().wait()
"""


@pytest.fixture
def service(tiny_model, tmp_path, monkeypatch) -> Iterator[ServiceThread]:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(preflight, "check", lambda config, model: [])
    monkeypatch.setattr(engines, "VllmProcess", StandIn)
    monkeypatch.setattr(StandIn, "program", ("-c", SLOW_ENGINE))
    sections = {"engine": {"model": str(tiny_model)}, "learner": {"enabled": False}}
    with ServiceThread(tmp_path, None, sections) as service:
        yield service


def kill_engine(service: ServiceThread) -> None:
    engine = service.service.engines.child
    assert engine is not None
    os.kill(pid_of_child(engine), signal.SIGKILL)


def stream(service: ServiceThread, ends: list[str]) -> None:
    """Stream one answer and note how it ended."""
    url = f"{service.service.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=ask("hi", stream=True), timeout=30) as response:
        ends.append(response.read().decode().strip().splitlines()[-1])


def test_an_engine_killed_under_load_is_back_with_the_same_version_and_base_never_answers(
    service, capsys
):
    version = make_version(service)
    go_live(service, version)
    ends: list[str] = []
    streams = [threading.Thread(target=stream, args=(service, ends)) for _ in range(8)]
    for thread in streams:
        thread.start()
    time.sleep(0.7)  # a chunk or two into their answers
    kill_engine(service)
    killed_at = time.monotonic()
    for thread in streams:
        thread.join(20)
    assert len(ends) == 8
    assert all('"error"' in end for end in ends)

    reasons: list[str] = []
    answers: list[httpx.Response] = []

    def is_back() -> bool:
        ready = service.http.get("/ready")
        reasons.extend(ready.json().get("reasons", []))
        answers.append(chat(service))
        return bool(reasons) and ready.status_code == 200

    wait_until(is_back, 20)
    assert time.monotonic() - killed_at < 15.0
    assert any("vLLM was killed (SIGKILL)" in reason for reason in reasons)
    assert live(service) == version
    assert is_answer_of(chat(service), version)
    early = [answer for answer in answers if answer.status_code != 200]
    assert early
    assert all(answer.status_code == 503 and answer.headers["retry-after"] for answer in early)
    assert all(is_answer_of(answer, version) for answer in answers if answer not in early)
    assert "vLLM was killed (SIGKILL)" in capsys.readouterr().err


def test_an_engine_that_does_not_start_says_why_on_the_terminal_and_in_ready(
    service, monkeypatch, capsys
):
    monkeypatch.setattr(StandIn, "program", ("-c", "print('loading'); raise MemoryError('4 GB')"))
    kill_engine(service)

    def is_told() -> bool:
        reasons = service.http.get("/ready").json().get("reasons", [])
        return any("out of memory (MemoryError: 4 GB); lower engine.kv" in r for r in reasons)

    wait_until(is_told, 20)
    reasons = service.http.get("/ready").json()["reasons"]
    assert not any("\n" in reason for reason in reasons)
    told = capsys.readouterr().err
    assert "Last lines of" in told
    assert "loading\n" in told


def write_model(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 2048}', encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.engine
@pytest.mark.parametrize(
    ("section", "status", "named"),
    [
        ("[learner]\nrank = 64", 2, ("learner.rank", "engine.max_lora_rank")),
        ("[engine]\nmax_loras = 2", 2, ("engine.max_loras", "learner.enabled")),
        (
            "[engine]\nmax_loras = 3\npin_sessions = true",
            2,
            ("engine.max_loras", "engine.pin_sessions"),
        ),
        (
            "[engine]\nmax_model_len = 4096\nmodel = 'M'",
            2,
            ("engine.max_model_len", "engine.model"),
        ),
        ("[engine]\nkv_cache_gib = 4000\nmodel = 'M'", 1, ("engine.kv_cache_gib", "engine.model")),
        ("[engine]\nchat_template = 'none.jinja'\nmodel = 'M'", 2, ("engine.chat_template",)),
        ("[engine]\nextra_args = ['--host=0.0.0.0']", 2, ("engine.extra_args", "--host")),
    ],
)
def test_serve_refuses_what_cannot_work_before_the_engine_starts(tmp_path, section, status, named):
    model = write_model(tmp_path / "model")
    text = section.replace("'M'", f"'{model}'") + "\n[server]\nport = 0"
    (tmp_path / "denizen.toml").write_text(text, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "console.cli", "serve", "--home", str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == status
    assert all(name in ended.stderr for name in named)
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "logs/engine.log").exists()
