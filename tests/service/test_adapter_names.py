"""Names of versions that nobody should send: refused everywhere, and no file is looked at for them.

What the process opens is watched by an audit hook, which sees every ``open`` of every thread.
"""

import itertools
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from console.cli import app
from tests.running import REPOSITORY, ServiceThread, ask, wait_until

WATCHED = {"open", "os.listdir", "os.scandir", "os.rename", "os.remove"}
INSTALLED = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, REPOSITORY)}

STRANGE = [
    "../x",
    "..%2fx",
    "%2e%2e%2fx",
    "/etc",
    "/etc/passwd",
    "a/b",
    "..\\x",
    "C:\\x",
    "file:///etc/passwd",
    "~",
    "~root",
    "$HOME",
    "*",
    "denizen-*",
    "denizen-00000?",
    "\0",
    "x" * 300,
    "' OR 1=1 --",
    "%s%n{0}",
    "\x1b[2J",
    "line\nERROR forged",
    "\r\nset-cookie: x=1",
    "\u2028",
    "\u202e100000-nezined",
    ".staging-x",
    ".orphan-denizen-000001-1",
    "denizen-000009",  # a link to a folder outside lies there under this name
    "DENIZEN-000001",
    "Denizen-000001",
    "denizen_000001",
    "denizen-1",
    "denizen-0000001",
    "denizen-００００ ０１",
    "denizen-０００００１",
    "denizen-٠٠٠٠٠١",
    "denizen‑000001",
    "dеnizen-000001",  # a Cyrillic letter
    "denizen-00000\u00b9",
]
AROUND = [
    "{}",
    "../{}",
    "../../{}",
    "./{}",
    "{}/",
    "{}/..",
    "{}.",
    "{} ",
    " {}",
    "{}\0",
    "{}\n",
    "{}%00",
]
BASES = ["denizen-000001", "adapters", "denizen.db", "bait", "denizen-000001/adapter_config.json"]
NAMES = [
    *STRANGE,
    *(around.format(strange) for around, strange in itertools.product(AROUND, BASES)),
]
NAMES += [f"{name}{tail}" for name in STRANGE for tail in (".", "/../denizen-000001", "\u200b")]
NAMES = sorted(set(NAMES) - {"denizen-000001"})

opened: list[str] | None = None


def remember(event: str, arguments: tuple[object, ...]) -> None:
    if opened is None or event not in WATCHED:
        return
    if not str(arguments[0]).endswith("/logs/engine.log"):  # of the engine that other tests share
        opened.append(os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes) else "")


sys.addaudithook(remember)  # for the life of the process: there is no way to remove one


@pytest.fixture
def watched() -> Iterator[list[str]]:
    global opened
    opened = []
    yield opened
    opened = None


@pytest.fixture(scope="module")
def service(tmp_path_factory, tiny_model) -> Iterator[ServiceThread]:
    """A service with one version, and a link among the versions that leads outside."""
    from tests.fake_engine import FakeEngine
    from tests.learner.peft_adapter import save_with_peft

    place = tmp_path_factory.mktemp("names")
    (place / "home").mkdir()
    bait = save_with_peft(tiny_model, place / "bait")
    with (
        FakeEngine(root=str(tiny_model)) as engine,
        ServiceThread(place / "home", engine.url) as up,
    ):
        files = {
            name: (bait / name).read_bytes()
            for name in ("adapter_model.safetensors", "adapter_config.json")
        }
        up.http.post("/v1/adapters", files=files).raise_for_status()
        (place / "home/adapters/denizen-000009").symlink_to(bait)
        tasks = [{"prompt": f"{i} * 2 = ?", "reference": str(2 * i)} for i in range(40)]
        up.http.post("/v1/tasks", json={"tasks": tasks}).raise_for_status()
        wait_until(lambda: all(t["skill_id"] for t in up.http.get("/v1/tasks").json()["data"]))
        yield up


def strays(paths: list[str], home: Path) -> list[str]:
    """Return what lies neither in the home nor in the installation (modules that load late)."""
    found = [Path(path).resolve() for path in paths if "\0" not in path and len(path) < 250]
    allowed = {home, *INSTALLED}
    return [str(path) for path in found if not allowed & {path, *path.parents}]


def test_there_are_more_than_200_names_and_the_watch_sees_an_open(tmp_path, watched):
    assert len(NAMES) > 200
    (tmp_path / "seen").touch()
    (tmp_path / "seen").read_text("utf-8")
    assert strays(watched, tmp_path / "elsewhere") == [str(tmp_path / "seen")] * 2


def test_no_route_takes_a_strange_name_nor_opens_a_file_for_it(service, watched, caplog):
    caplog.set_level(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # this test's own client
    http, before = service.http, service.http.get("/v1/adapters").json()
    answers = []
    for name in NAMES:
        path = f"/v1/adapters/{quote(name, safe='')}"
        forced = {"force": True, "reason": "x"}
        answers += [
            (name, http.get(path)),
            (name, http.get(f"{path}/verify")),
            (name, http.post(f"{path}/promote", json=forced)),
            (name, http.post(f"{path}/approve", json={})),
            (name, http.post(f"{path}/reject", json={})),
            (name, http.post("/v1/adapters/rollback", json={"to": name})),
            (name, http.post("/v1/chat/completions", json=ask("x") | {"model": name})),
            (name, http.post("/v1/chat/completions", json=ask("x") | {"model": f"denizen@{name}"})),
        ]
    for name in NAMES[::10]:
        compared = {"before": name, "after": "base"}
        answers.append((name, http.post("/v1/adapters/compare", json=compared)))
    wrong = [
        (name, r.request.url, r.status_code) for name, r in answers if r.status_code // 100 != 4
    ]
    assert wrong == []
    assert all(set(r.json()) == {"error"} for _, r in answers)
    assert all(r.status_code == 404 for _, r in answers if r.request.url.path.endswith("compare"))
    assert strays(watched, service.service.home) == []
    assert http.get("/v1/adapters").json() == before
    assert [r.getMessage() for r in caplog.records if len(r.getMessage().splitlines()) != 1] == []


def test_no_command_takes_a_strange_name(service, watched, monkeypatch):
    monkeypatch.setenv("DENIZEN_URL", service.service.url)
    verbs = [
        ("show",),
        ("verify",),
        ("promote", "--force", "--reason", "x"),
        ("approve",),
        ("reject",),
        ("rollback", "--to"),
    ]
    names = ["", ".", "..", "\udcff", *NAMES[:: len(NAMES) // 20]]
    ended = {
        (verb[0], name): CliRunner()
        .invoke(app, ["adapters", *verb, *([] if verb[-1] == "--to" else ["--"]), name])
        .exit_code
        for name in names
        for verb in verbs
    }
    assert {key: code for key, code in ended.items() if code != 1} == {}
    assert service.http.get("/v1/adapters/moves").json()["data"] == []
    assert strays(watched, service.service.home) == []


@pytest.mark.parametrize("name", NAMES[::20])
def test_no_folder_of_a_strange_name_is_imported(service, monkeypatch, name):
    monkeypatch.setenv("DENIZEN_URL", service.service.url)
    result = CliRunner().invoke(app, ["adapters", "import", "--", name])
    assert result.exit_code == 2
    assert len(service.http.get("/v1/adapters").json()["data"]) == 1
