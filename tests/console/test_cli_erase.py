"""``denizen erase`` and ``denizen episodes export`` against a running service."""

import json

import pytest
from typer.testing import CliRunner

from console.cli import app
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread, ask
from tests.tiny_model import VOCAB_SIZE, save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def service(model, tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    with (
        FakeEngine(vocab_size=VOCAB_SIZE, root=str(model)) as engine,
        ServiceThread(tmp_path / "home", engine.url) as service,
    ):
        monkeypatch.setenv("DENIZEN_URL", service.service.url)
        yield service


def chat(service: ServiceThread, text: str) -> str:
    headers = {"x-denizen-session": "s1"}
    answer = service.http.post("/v1/chat/completions", json=ask(text), headers=headers)
    return answer.headers["x-denizen-episode-id"]


def run(*arguments: str, input: str | None = None):
    return CliRunner().invoke(app, arguments, input=input)


def test_erase_asks_and_a_no_erases_nothing(service):
    episode_id = chat(service, "hi")
    refused = run("erase", "--session", "s1", input="n\n")
    assert refused.exit_code == 1
    assert "1 calls" in refused.output
    assert service.http.get(f"/v1/episodes/{episode_id}").status_code == 200
    done = run("erase", "--session", "s1", input="y\n")
    assert done.exit_code == 0, done.output
    assert service.http.get(f"/v1/episodes/{episode_id}").status_code == 404


def test_erase_prints_json_without_asking(service):
    episode_id = chat(service, "hi")
    done = run("erase", "--episode", episode_id, "--yes", "--json")
    told = json.loads(done.stdout)
    assert told["counts"]["calls"] == 1
    assert told["tainted"] == []
    assert told["files"]["found"] == {}


def test_erase_of_nothing_named_and_of_what_is_not_there(service):
    assert run("erase", "--yes").exit_code == 2
    assert run("erase", "--episode", "ep_none", "--yes").exit_code == 1


def test_export_writes_a_line_for_each_episode_and_no_file_twice(service, tmp_path):
    episode_id = chat(service, "hi")
    file = tmp_path / "out.jsonl"
    done = run("episodes", "export", str(file), "--session", "s1")
    assert done.exit_code == 0, done.output
    [line] = file.read_text("utf-8").splitlines()
    assert json.loads(line)["episode"]["id"] == episode_id
    assert run("episodes", "export", str(file)).exit_code == 2
    assert run("episodes", "export", str(tmp_path / "b"), "--since", "soon").exit_code == 1
    assert not (tmp_path / "b").exists()


def test_a_task_is_erased_after_asking(service):
    body = {"tasks": [{"prompt": f"{number} * 2 = ?", "reference": "8"} for number in (3, 4)]}
    service.http.post("/v1/tasks", json=body).raise_for_status()
    one, other = (row["id"] for row in service.http.get("/v1/tasks").json()["data"])
    refused = run("tasks", "rm", one, input="n\n")
    assert refused.exit_code == 1
    assert "1 tasks" in refused.output
    done = run("tasks", "rm", one, "--yes", "--json")
    assert json.loads(done.stdout)["counts"]["tasks"] == 1
    assert [row["id"] for row in service.http.get("/v1/tasks").json()["data"]] == [other]
    assert service.http.delete(f"/v1/tasks/{one}").status_code == 404
    assert service.http.delete(f"/v1/tasks/{other}").json()["scope"] == "task"
    assert run("tasks", "rm", other, "--yes").exit_code == 1
