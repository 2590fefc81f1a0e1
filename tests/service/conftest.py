from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_engine import FakeEngine
from tests.running import ServiceThread
from tests.tiny_model import VOCAB_SIZE, save_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def engine(tiny_model) -> Iterator[FakeEngine]:
    with FakeEngine(vocab_size=VOCAB_SIZE, root=str(tiny_model)) as engine:
        yield engine


@pytest.fixture
def service(engine, tmp_path) -> Iterator[ServiceThread]:
    with ServiceThread(tmp_path, engine.url) as service:
        yield service
