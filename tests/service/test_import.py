"""Versions from outside: what may come in, what is refused, and that nothing half stays."""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner, Result

from console.cli import app
from tests.fake_engine import FakeEngine
from tests.learner.peft_adapter import save_with_peft
from tests.running import ServiceThread, ask, wait_until
from tests.service.test_learning import LEARNER, right_answer, tasks
from tests.tiny_model import VOCAB_SIZE

WEIGHTS, CONFIG, MANIFEST = "adapter_model.safetensors", "adapter_config.json", "manifest.json"
FORCED = {"force": True, "reason": "a test"}
Denizen = Callable[..., Result]


@pytest.fixture(scope="session")
def saved(tiny_model, tmp_path_factory) -> Path:
    return save_with_peft(tiny_model, tmp_path_factory.mktemp("peft") / "adapter")


@pytest.fixture
def adapter(saved, tmp_path) -> Path:
    """A folder of peft's that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "outside" / "adapter"))


@pytest.fixture
def service(engine, tmp_path) -> Iterator[ServiceThread]:
    (tmp_path / "home").mkdir()
    with ServiceThread(tmp_path / "home", engine.url) as service:
        yield service


@pytest.fixture
def denizen(service, monkeypatch) -> Denizen:
    monkeypatch.setenv("DENIZEN_URL", service.service.url)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def upload(http: httpx.Client, folder: Path, reason: str | None = None) -> httpx.Response:
    names = [name for name in (WEIGHTS, CONFIG, MANIFEST) if (folder / name).exists()]
    files = {name: (name, (folder / name).read_bytes()) for name in names}
    return http.post("/v1/adapters", files=files, data={"reason": reason} if reason else None)


def change_config(folder: Path, **changes: Any) -> None:
    fields = json.loads((folder / CONFIG).read_text("utf-8")) | changes
    (folder / CONFIG).write_text(json.dumps(fields), encoding="utf-8")


def change_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def state(service: ServiceThread) -> tuple[Any, ...]:
    """Return what clients can see of versions, and what lies in their folder."""
    lists = [service.http.get(path).json() for path in ("/v1/adapters", "/v1/models")]
    folder = sorted(path.name for path in (service.service.home / "adapters").iterdir())
    return *lists, folder


def refused(service: ServiceThread, response: httpx.Response, *words: str) -> None:
    assert response.status_code == 400, response.text
    message = response.json()["error"]["message"]
    assert all(word in message for word in words), message
    assert state(service)[2] == []


def test_what_peft_saved_becomes_a_candidate_and_with_force_and_a_reason_it_answers(
    service, engine, adapter, denizen
):
    assert (adapter / "README.md").exists()
    imported = denizen("adapters", "import", str(adapter), "--reason", "from the lab", "--json")
    version = json.loads(imported.stdout)
    given = {"id": "denizen-000001", "status": "candidate", "parent": "base", "origin": "import"}
    given |= {"rank": 2, "alpha": 4, "live": False, "reason": "from the lab"}
    assert version | given == version
    assert service.http.get("/v1/adapters/denizen-000001").json()["sha256"] == version["sha256"]
    body = ask("x") | {"model": "denizen@candidate"}
    answer = service.http.post("/v1/chat/completions", json=body)
    assert answer.headers["x-denizen-adapter"] == "denizen-000001"

    plain = denizen("adapters", "promote", "denizen-000001")
    assert (plain.exit_code, "force" in plain.stderr) == (1, True)
    assert denizen("adapters", "promote", "denizen-000001", "--force").exit_code == 2
    options = ("--force", "--reason", "measured by hand")
    assert denizen("adapters", "promote", "denizen-000001", *options).exit_code == 0
    [move] = service.http.get("/v1/adapters/moves").json()["data"]
    assert (move["forced"], move["reason"]) == (True, "measured by hand")
    answer = service.http.post("/v1/chat/completions", json=ask("x"))
    assert answer.headers["x-denizen-adapter"] == "denizen-000001"
    assert service.http.get("/v1/adapters/verify").json() == {"ok": True, "problems": []}


def test_an_adapter_on_all_linear_layers_comes_in_over_http(service, tiny_model, tmp_path):
    folder = save_with_peft(tiny_model, tmp_path / "all", target_modules="all-linear", r=16)
    response = upload(service.http, folder, reason="all layers")
    assert response.status_code == 201
    assert response.json()["id"] == "denizen-000001"
    assert response.json()["reason"] == "all layers"
    files = [("files", (name, (folder / name).read_bytes())) for name in (WEIGHTS, CONFIG)]
    again = service.http.post("/v1/adapters", files=files)  # as curl -F files=@… sends it
    assert again.status_code == 409
    message = again.json()["error"]["message"]
    assert "denizen-000001" in message and "candidate" in message
    assert len(state(service)[2]) == 1


def test_the_command_prints_the_new_id(denizen, adapter):
    result = denizen("adapters", "import", str(adapter))
    assert (result.exit_code, result.stdout) == (0, "denizen-000001\n")


def test_a_folder_of_another_denizen_comes_in_and_a_changed_one_does_not(
    service, engine, adapter, denizen, tmp_path
):
    assert upload(service.http, adapter).status_code == 201
    sealed = service.service.home / "adapters/denizen-000001"
    (tmp_path / "second").mkdir()
    with ServiceThread(tmp_path / "second", engine.url) as second:

        def changed(change: Callable[[Path], object]) -> httpx.Response:
            folder = tmp_path / "changed"
            shutil.rmtree(folder, ignore_errors=True)
            change(Path(shutil.copytree(sealed, folder)))
            return upload(second.http, folder)

        def other_base(folder: Path) -> None:
            manifest = json.loads((folder / MANIFEST).read_text("utf-8")) | {
                "base_digest": "0" * 64
            }
            (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")

        response = changed(lambda folder: change_config(folder, lora_alpha=64))
        refused(second, response, "alpha is expected as 4, found 64")
        ours = second.parts.fit.base_digest
        refused(second, changed(other_base), "base_digest", f"expected as {ours}", "found 000")
        response = changed(lambda folder: change_weights(folder, lambda t: t.popitem()))
        refused(second, response, "expected lora_A and lora_B of", "found only")
        response = changed(lambda folder: change_weights(folder, zero_one))
        refused(second, response, "sha256 is expected as", "found")
        taken = changed(lambda folder: None)
        assert (taken.status_code, taken.json()["parent"]) == (201, "base")


def zero_one(tensors: dict[str, Any]) -> None:
    name = min(tensors)
    tensors[name] = np.zeros_like(tensors[name])


def test_an_adapter_that_names_another_base_is_refused_and_told_how_to_mend(
    service, adapter, denizen
):
    change_config(adapter, base_model_name_or_path="acme/Other-1B")
    result = denizen("adapters", "import", str(adapter))
    assert result.exit_code == 1
    assert all(word in result.stderr for word in ("'model'", "acme/Other-1B", "null"))
    assert state(service)[2] == []
    change_config(adapter, base_model_name_or_path=None)
    assert denizen("adapters", "import", str(adapter)).exit_code == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"r": 64}, ["rank 64", "at most 16", "engine.max_lora_rank"]),
        ({"modules_to_save": ["lm_head"]}, ["modules_to_save"]),
        ({"use_dora": True}, ["use_dora"]),
        ({"rank_pattern": {"q_proj": 4}}, ["rank_pattern"]),
    ],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_what_the_engine_cannot_serve_is_refused_when_it_comes_in(
    service, tiny_model, tmp_path, options, words
):
    folder = save_with_peft(tiny_model, tmp_path / "adapter", **options)
    refused(service, upload(service.http, folder), *words)


@pytest.mark.parametrize("key", ["auto_map", "auto_mapping", "trust_remote_code"])
def test_an_adapter_that_names_code_is_refused(service, adapter, key):
    change_config(adapter, **{key: {"AutoModel": "evil.Model"}})
    refused(service, upload(service.http, adapter), key)


class Canary:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("name", ["adapter_model.bin", "x.pt", "training_args.pkl", "o.pth"])
def test_a_pickle_is_refused_even_beside_good_weights_and_is_never_loaded(
    service, adapter, denizen, tmp_path, name
):
    canary = tmp_path / "canary"
    content = pickle.dumps(Canary(canary))
    (adapter / name).write_bytes(content)
    result = denizen("adapters", "import", str(adapter))
    assert (result.exit_code, name in result.stderr) == (2, True)
    files = {one: (adapter / one).read_bytes() for one in (WEIGHTS, CONFIG, name)}
    refused(service, service.http.post("/v1/adapters", files=files), name)
    files = {WEIGHTS: (name, content), CONFIG: (adapter / CONFIG).read_bytes()}
    refused(service, service.http.post("/v1/adapters", files=files), "broken or cut off")
    assert not canary.exists()
    pickle.loads(content).close()
    assert canary.exists(), "the canary does not sing: the test shows nothing"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: shutil.rmtree(folder), ["No such file"]),
        (lambda folder: [path.unlink() for path in folder.iterdir()], ["is empty"]),
        (lambda folder: (folder / WEIGHTS).unlink(), ["lacks", WEIGHTS]),
        (lambda folder: os.truncate(folder / WEIGHTS, 100), ["broken or cut off"]),
        (lambda folder: os.truncate(folder / WEIGHTS, 0), ["broken or cut off"]),
        (lambda folder: (folder / CONFIG).write_text("{", "utf-8"), ["JSON"]),
        (lambda folder: (folder / "tokenizer.json").touch(), ["tokenizer.json"]),
        (lambda folder: (folder / ".hidden").touch(), [".hidden"]),
        (lambda folder: leave_a_link(folder), ["symbolic link"]),
        (lambda folder: leave_a_link(folder / WEIGHTS), [WEIGHTS, "symbolic links"]),
    ],
)
def test_a_folder_that_is_no_adapter_is_refused_in_words(service, adapter, denizen, change, words):
    change(adapter)
    result = denizen("adapters", "import", str(adapter))
    assert result.exit_code in (1, 2)
    shown = " ".join(result.stderr.replace("│", " ").split())
    assert all(word in shown for word in words), shown
    assert state(service)[2] == []


def leave_a_link(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / f"real-{path.name}"))


def test_an_import_needs_an_admin_and_may_be_larger_than_other_bodies(engine, tiny_model, tmp_path):
    sections = {
        "auth": {"user_keys": ("user-key",), "admin_keys": ("admin-key",)},
        "server": {"max_body_mib": 0.01},
    }
    folder = save_with_peft(tiny_model, tmp_path / "adapter", target_modules="all-linear", r=16)
    assert (folder / WEIGHTS).stat().st_size > 10_000
    (tmp_path / "home").mkdir()
    with ServiceThread(tmp_path / "home", engine.url, sections) as service:
        assert upload(service.http, folder).status_code == 401
        service.http.headers["authorization"] = "Bearer user-key"
        assert upload(service.http, folder).status_code == 403
        service.http.headers["authorization"] = "Bearer admin-key"
        assert upload(service.http, folder).status_code == 201
        limit = service.parts.fit.max_upload_bytes
        too_large = b"x" * (limit + 1)
        multipart = {"content-type": "multipart/form-data; boundary=b"}
        for content in (too_large, iter([too_large[:limit], b"xx"])):
            response = service.http.post("/v1/adapters", content=content, headers=multipart)
            assert response.status_code == 413
            assert "engine.max_lora_rank" in response.json()["error"]["message"]
        for path in ("/v1/chat/completions", "/v1/adapters/denizen-000001/promote"):
            assert service.http.post(path, json={"x": "x" * 11_000}).status_code == 413
        assert len(state(service)[2]) == 1


def test_a_full_disk_is_a_503_and_leaves_nothing(service, adapter, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        response = upload(service.http, adapter)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "No space left on device" in response.json()["error"]["message"]
    assert state(service)[2] == []
    assert upload(service.http, adapter).json()["id"] == "denizen-000001"


def add_nan(tensors: dict[str, Any]) -> None:
    tensors[min(tensors)][0, 0] = np.nan


def widen(tensors: dict[str, Any]) -> None:
    tensors[min(tensors)] = np.ones((2, 99), np.float32)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": shutil.rmtree,
    "empty": lambda folder: [path.unlink() for path in folder.iterdir()],
    "truncated": lambda folder: os.truncate(folder / WEIGHTS, 200),
    "wrong shapes": lambda folder: change_weights(folder, widen),
    "not finite": lambda folder: change_weights(folder, add_nan),
    "another alpha": lambda folder: change_config(folder, lora_alpha=64),
    "a pickle beside it": lambda folder: (folder / "adapter_model.bin").touch(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_version_damaged_after_it_was_sealed_is_not_promoted_and_the_live_one_goes_on(
    service, adapter, denizen, damage
):
    upload(service.http, adapter)
    promoted = service.http.post("/v1/adapters/denizen-000001/promote", json=FORCED)
    assert promoted.json()["moved"]
    change_config(adapter, lora_alpha=8)
    assert upload(service.http, adapter).json()["id"] == "denizen-000002"
    damage(service.service.home / "adapters/denizen-000002")
    before = state(service)
    response = service.http.post("/v1/adapters/denizen-000002/promote", json=FORCED)
    assert response.status_code == 400
    assert "denizen-000002 is not what was sealed" in response.json()["error"]["message"]
    assert state(service) == before
    assert [m["to_version"] for m in service.http.get("/v1/adapters/moves").json()["data"]] == [
        "denizen-000001"
    ]
    answer = service.http.post("/v1/chat/completions", json=ask("x"))
    assert (answer.status_code, answer.headers["x-denizen-adapter"]) == (200, "denizen-000001")
    one, every = (denizen("adapters", "verify", *ids) for ids in (["denizen-000002"], []))
    assert (one.exit_code, every.exit_code) == (1, 1)
    assert "denizen-000002 is not what was sealed" in one.stdout == every.stdout


def test_an_import_while_a_cycle_practises_takes_the_next_name_and_the_cycle_the_one_after(
    tiny_model, adapter, tmp_path
):
    with (
        FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=right_answer) as engine,
        ServiceThread(tmp_path, engine.url, {"learner": LEARNER}) as service,
    ):
        service.http.post("/v1/tasks", json={"tasks": tasks(60)}).raise_for_status()
        wait_until(lambda: all(t["skill_id"] for t in service.http.get("/v1/tasks").json()["data"]))
        cycle = service.http.post("/v1/cycles", json={}).json()["id"]
        wait_until(lambda: any("step-01" in name for name in engine.adapters), 60)
        assert upload(service.http, adapter).json()["id"] == "denizen-000001"
        path = f"/v1/cycles/{cycle}"
        wait_until(lambda: service.http.get(path).json()["state"] != "running", 120)
        ended = service.http.get(path).json()
        assert (ended["state"], ended["candidate"]) == ("promoted", "denizen-000002")
        assert service.http.get("/v1/status").json()["live"] == "denizen-000002"
        assert service.http.get("/v1/adapters/denizen-000001").json()["status"] == "candidate"


def test_verify_names_what_is_in_no_database(service, adapter, denizen):
    upload(service.http, adapter)
    root = service.service.home / "adapters"
    assert denizen("adapters", "verify").stdout == "every version is as recorded\n"
    shutil.copytree(root / "denizen-000001", root / "denizen-000005")
    result = denizen("adapters", "verify", "--json")
    assert result.exit_code == 1
    [problem] = json.loads(result.stdout)["problems"]
    assert "'denizen-000005' is in no database" in problem
    assert service.http.get("/v1/adapters/denizen-000005").status_code == 404
