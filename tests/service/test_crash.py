"""SIGKILL at the worst moments: what was acknowledged is kept, nothing half-done is offered."""

import json
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceProcess, ask, wait_until
from tests.service.test_learning import right_answer, tasks
from tests.tiny_model import VOCAB_SIZE

LEARNER_ENV = {
    "DENIZEN_LEARNER__ENABLED": "false",
    "DENIZEN_LEARNER__RANK": "2",
    "DENIZEN_LEARNER__DTYPE": "float32",
    "DENIZEN_LEARNER__GROUP_SIZE": "3",
    "DENIZEN_LEARNER__TASKS_PER_STEP": "4",
    "DENIZEN_LEARNER__STEPS_PER_CYCLE": "1",
    "DENIZEN_LEARNER__MAX_SEQUENCE_GAP": "100",
}
KILL_BEFORE_THE_RENAME = """
import os, signal
rename = os.replace
def replace(source, target, **options):
    if str(target).endswith("adapters/denizen-000002"):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target, **options)
os.replace = replace
"""
KILL_BEFORE_THE_ROW = """
import os, signal
from memory.version_store import VersionStore
add = VersionStore.add
def kill_at_second(self, version, episode_ids):
    if version.id == "denizen-000002":
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, version, episode_ids)
VersionStore.add = kill_at_second
"""
KILL_BEFORE_THE_MOVE = """
import os, signal
from memory.version_store import VersionStore
move_pointer = VersionStore.move_pointer
def kill_at_second(self, **fields):
    if fields["to"] == "denizen-000002":
        os.kill(os.getpid(), signal.SIGKILL)
    move_pointer(self, **fields)
VersionStore.move_pointer = kill_at_second
"""


@pytest.fixture
def engine(tiny_model):
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=right_answer) as engine:
        yield engine


@pytest.fixture
def service(engine, tmp_path):
    with service_of(tmp_path, engine) as service:
        service.start()
        service.wait_ready()
        yield service


@contextmanager
def service_of(home: Path, engine: FakeEngine) -> Iterator[ServiceProcess]:
    service = ServiceProcess(home, "--engine-url", engine.url, env=LEARNER_ENV)
    try:
        yield service
    finally:
        if service.process is not None and service.process.poll() is None:
            service.stop()
        service.http.close()


def chat(service: ServiceProcess, text: str = "2 * 3 = ?") -> str:
    """Return the id of an acknowledged completion."""
    return service.http.post("/v1/chat/completions", json=ask(text)).raise_for_status().json()["id"]


def recorded(home: Path) -> dict[str, str]:
    """Return call id -> status, read from the database file itself, and check the file."""
    connection = sqlite3.connect(home / "denizen.db")
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    found = dict(connection.execute("SELECT id, status FROM calls").fetchall())
    connection.close()
    return found


def versions_of(home: Path) -> dict[str, str]:
    """Return version -> status, read from the database file itself."""
    connection = sqlite3.connect(home / "denizen.db")
    found = dict(connection.execute("SELECT id, status FROM adapter_versions").fetchall())
    connection.close()
    return found


@pytest.fixture(scope="module")
def learned(tiny_model, tmp_path_factory) -> Path:
    """Return the home of a service that has learned a first version and stopped."""
    home: Path = tmp_path_factory.mktemp("learned")
    with (
        FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model), answer=right_answer) as engine,
        service_of(home, engine) as service,
    ):
        service.start()
        service.wait_ready()
        learn_once(service)
    return home


@pytest.fixture
def learned_service(learned, engine, tmp_path):
    """Yield one on a copy of that home, not yet started."""
    with service_of(shutil.copytree(learned, tmp_path / "home"), engine) as service:
        yield service


def learn_once(service: ServiceProcess) -> None:
    """Teach a first version and make it live."""
    service.http.post("/v1/tasks", json={"tasks": tasks(60)}).raise_for_status()
    wait_until(lambda: all(t["skill_id"] for t in service.http.get("/v1/tasks").json()["data"]), 60)
    service.http.post("/v1/cycles", json={}).raise_for_status()
    wait_until(lambda: not service.http.get("/v1/status").json()["running"], 120)
    live = service.http.get("/v1/status").json()["live"]
    if live != "denizen-000001":  # the first cycle gains; later ones cannot
        raise AssertionError(service.http.get("/v1/cycles").text)


def test_killed_in_mid_stream_what_was_acknowledged_is_kept(service, engine):
    acknowledged = [chat(service) for _ in range(5)]
    engine.control(chunk_delay_s=0.1)

    def stream() -> None:
        with pytest.raises(httpx.TransportError):
            httpx.post(
                f"{service.http.base_url}/v1/chat/completions", json=ask("2 * 3 = ?", stream=True)
            )

    client = threading.Thread(target=stream)
    client.start()
    wait_until(lambda: any(r.body and r.body.get("stream") for r in engine.requests))
    service.kill()
    client.join(10)
    wait_until(lambda: engine.requests[-1].disconnected)

    engine.control(chunk_delay_s=0.0)
    service.start()
    service.wait_ready()
    acknowledged.append(chat(service))
    service.http.get("/v1/status").raise_for_status()  # what was answered is in the file
    assert set(acknowledged) <= set(recorded(service.home))


def test_killed_again_and_again_under_load_no_acknowledged_record_is_lost(service):
    acknowledged: list[str] = []
    for _ in range(5):
        stop = threading.Event()

        def talk(stop: threading.Event = stop) -> None:
            with httpx.Client(base_url=service.http.base_url, timeout=30) as http:
                while not stop.is_set():
                    try:
                        answer = http.post("/v1/chat/completions", json=ask("2 * 3 = ?"))
                    except httpx.TransportError:
                        return
                    acknowledged.append(answer.json()["id"])

        threads = [threading.Thread(target=talk) for _ in range(4)]
        before = len(acknowledged)
        for thread in threads:
            thread.start()
        wait_until(lambda before=before: len(acknowledged) > before + 30)
        service.kill()
        stop.set()
        for thread in threads:
            thread.join(10)
        service.start()  # which records what was safe and not yet in the file
        service.wait_ready()
        assert set(acknowledged) <= set(recorded(service.home))
    assert len(acknowledged) > 150


def test_killed_in_a_learning_step_the_worker_is_gone_and_the_next_service_goes_on(service):
    service.http.post("/v1/tasks", json={"tasks": tasks(60)}).raise_for_status()
    wait_until(lambda: all(t["skill_id"] for t in service.http.get("/v1/tasks").json()["data"]), 60)
    cycle = service.http.post("/v1/cycles", json={}).json()["id"]
    wait_until(lambda: list((service.home / "work").glob("*/step-01.jsonl")) != [], 60)
    assert service.process is not None
    children = psutil.Process(service.process.pid).children(recursive=True)
    workers = [child for child in children if "learner.worker" in " ".join(child.cmdline())]
    assert workers
    service.kill()
    psutil.wait_procs(workers, timeout=15)
    assert not any(worker.is_running() for worker in workers)

    service.start()
    service.wait_ready()
    path = f"/v1/cycles/{cycle}"
    wait_until(lambda: service.http.get(path).json()["state"] != "running", 120)
    ended = service.http.get(path).json()
    assert (ended["state"], ended["candidate"]) == ("promoted", "denizen-000001"), ended
    assert (ended["num_resumes"], ended["num_deaths"]) == (1, 1)
    assert not list((service.home / "work").glob("*"))


@pytest.mark.parametrize(
    "prelude",
    [KILL_BEFORE_THE_RENAME, KILL_BEFORE_THE_ROW, KILL_BEFORE_THE_MOVE],
    ids=["before the rename", "before the row", "before the move"],
)
def test_killed_while_a_version_is_made_no_half_is_offered_and_the_next_service_makes_it(
    learned_service, engine, prelude
):
    service = learned_service
    with closing(sqlite3.connect(service.home / "denizen.db")) as db:
        [(digest,)] = db.execute("SELECT sha256 FROM adapter_versions").fetchall()
    engine.answer = lambda model, messages: (  # so that the second cycle has something to gain
        right_answer("base" if model == "denizen-000001" else model, messages)
    )
    service.start(prelude)
    service.wait_ready()
    service.http.post("/v1/cycles", json={}).raise_for_status()
    assert service.process is not None
    assert service.process.wait(120) == -9
    listed = versions_of(service.home)
    assert listed["denizen-000001"] == "live"
    assert listed.get("denizen-000002") in {None, "candidate"}
    assert ("denizen-000002" in listed) == (prelude is KILL_BEFORE_THE_MOVE)

    service.start()
    service.wait_ready()
    wait_until(lambda: not service.http.get("/v1/status").json()["running"], 120)
    assert service.http.get("/v1/status").json()["live"] == "denizen-000002"
    answer = service.http.post("/v1/chat/completions", json=ask("2 * 3 = ?"))
    assert answer.headers["x-denizen-adapter"] == "denizen-000002"
    versions = {v["id"]: v for v in service.http.get("/v1/adapters").json()["data"]}
    assert set(versions) == {"denizen-000001", "denizen-000002"}
    assert versions["denizen-000001"]["sha256"] == digest
    assert all(service.http.get(f"/v1/adapters/{one}/verify").json()["ok"] for one in versions)
    kept = [path.name for path in (service.home / "adapters").iterdir()]
    folders = {name for name in kept if not name.startswith(".orphan-")}  # set aside, not offered
    assert folders == set(versions), "a folder without a row, or a row without a folder"
    assert json.loads((service.home / "service.json").read_text("utf-8"))["pid"]


def test_a_second_service_on_the_same_home_is_refused(service):
    second = ServiceProcess(service.home, *service._arguments, env=LEARNER_ENV)
    note = (service.home / "service.json").read_bytes()
    second.start()
    assert second.process is not None
    assert second.process.wait(60) == 2
    assert "another Denizen runs on" in second.output()
    (service.home / "service.json").write_bytes(note)
    assert chat(service)


def test_sigterm_ends_it_cleanly_within_ten_seconds(service):
    assert service.stop() == 0
    assert not (service.home / "service.json").exists()
