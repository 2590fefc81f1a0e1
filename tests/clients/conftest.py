"""A service over a fake engine for programs written elsewhere, and a wall around this machine."""

import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest

from tests.clients.wall import WAYS_OUT, only_loopback
from tests.fake_engine import FakeEngine
from tests.running import ServiceThread
from tests.tiny_model import VOCAB_SIZE, save_tiny_model


@pytest.fixture(autouse=True)
def walled_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in WAYS_OUT:
        monkeypatch.setattr(socket.socket, way, only_loopback(getattr(socket.socket, way)))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[FakeEngine]:
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model)) as engine:
        yield engine


@pytest.fixture
def service(engine: FakeEngine, tmp_path: Path) -> Iterator[ServiceThread]:
    with ServiceThread(tmp_path, engine.url) as service:
        yield service


@pytest.fixture
def url(service: ServiceThread) -> str:
    """Return what a client is given as its base URL."""
    return f"{service.http.base_url}/v1"


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client
