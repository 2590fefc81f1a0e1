"""SIGKILL while a version comes in: it is there whole, or not at all, and can be sent again."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.learner.peft_adapter import save_with_peft
from tests.running import ServiceProcess, wait_until

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"

KILL = """
import os, signal
def dying(owner, name, is_due=lambda *arguments, **options: True):
    function = getattr(owner, name)
    def run(*arguments, **options):
        if is_due(*arguments, **options):
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    setattr(owner, name, run)
"""
POINTS = {
    "while it arrives": "from learner import uploads; dying(uploads._Parts, 'finish')",
    "before it is read": "from learner import registry; dying(registry, 'inspect_foreign')",
    "before its manifest is durable": "dying(os, 'fsync')",
    "before the rename": (
        "dying(os, 'replace', lambda source, to, **_: str(to).endswith('adapters/denizen-000001'))"
    ),
    "before the row": ("from memory.version_store import VersionStore; dying(VersionStore, 'add')"),
    "before the answer": (
        "from learner.registry import Registry\n"
        "adopt = Registry.adopt\n"
        "def adopt_and_die(*arguments, **options):\n"
        "    adopt(*arguments, **options)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Registry.adopt = adopt_and_die"
    ),
}


@pytest.fixture
def adapter(tiny_model, tmp_path) -> Path:
    return save_with_peft(tiny_model, tmp_path / "adapter")


@pytest.fixture
def service(engine, tmp_path):
    (tmp_path / "home").mkdir()
    service = ServiceProcess(tmp_path / "home", "--engine-url", engine.url)
    yield service
    if service.process is not None and service.process.poll() is None:
        service.stop()
    service.http.close()


def upload(service: ServiceProcess, folder: Path) -> httpx.Response:
    files = {name: (folder / name).read_bytes() for name in (WEIGHTS, CONFIG)}
    return service.http.post("/v1/adapters", files=files)


def check_whole(service: ServiceProcess, expected: list[str]) -> None:
    """Rows, folders and files agree; what was set aside is in no list."""
    versions = [one["id"] for one in service.http.get("/v1/adapters").json()["data"]]
    folders = sorted(path.name for path in (service.home / "adapters").iterdir())
    assert versions == [name for name in folders if not name.startswith(".orphan-")] == expected
    for name in versions:
        assert service.http.get(f"/v1/adapters/{name}/verify").json()["ok"]


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS.keys())
def test_killed_at_any_point_of_an_import_nothing_half_is_there(service, adapter, point):
    service.start(KILL + point)
    service.wait_ready()
    with pytest.raises(httpx.TransportError):
        upload(service, adapter)
    assert service.process is not None
    assert service.process.wait(30) == -9

    service.start()
    service.wait_ready()
    came_in = point == POINTS["before the answer"]
    check_whole(service, ["denizen-000001"] if came_in else [])
    again = upload(service, adapter)
    assert again.status_code == (409 if came_in else 201)
    check_whole(service, ["denizen-000001"])


def test_killed_in_the_middle_of_the_body_nothing_stays(service, adapter):
    service.start()
    service.wait_ready()
    files = {name: (adapter / name).read_bytes() for name in (WEIGHTS, CONFIG)}
    request = httpx.Request("POST", f"{service.http.base_url}/v1/adapters", files=files)
    head = [b"POST /v1/adapters HTTP/1.1", *(b"%s: %s" % one for one in request.headers.raw)]
    address = urlsplit(str(service.http.base_url))
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(b"\r\n".join(head) + b"\r\n\r\n" + request.read()[:1000])
        wait_until(lambda: list((service.home / "adapters").glob(".staging-*")) != [])
        service.kill()
    service.start()
    service.wait_ready()
    check_whole(service, [])
    assert upload(service, adapter).json()["id"] == "denizen-000001"


def test_a_client_that_hangs_up_in_the_middle_leaves_nothing(service, adapter):
    service.start()
    service.wait_ready()
    adapters = service.home / "adapters"
    address = urlsplit(str(service.http.base_url))
    head = b"POST /v1/adapters HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n"
    head += b"content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(head)
        wait_until(lambda: list(adapters.iterdir()) != [])
    wait_until(lambda: list(adapters.iterdir()) == [])
    assert upload(service, adapter).status_code == 201
    assert "Traceback" not in service.output()
