import asyncio
import os
import signal
from pathlib import Path

import pytest

from learner.errors import NoSignalError, RowError, TrainingError
from learner.rows import write_rows
from learner.trainer_config import TrainerConfig
from learner.training_process import TrainingProcess
from memory.errors import AdapterError
from tests.learner.training_rows import make_row, make_rows
from tests.tiny_model import save_tiny_model


class WiderConfig(TrainerConfig):
    """Settings that hold the trainer's and more, as the learner's do."""

    group_size: int = 8


CONFIG = WiderConfig(rank=4, alpha=8, num_threads=1)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def rows_path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    write_rows(path, make_rows())
    return path


def process_of(
    model_dir: Path, tmp_path: Path, *, timeout_s: float = 60.0, parent: Path | None = None
) -> TrainingProcess:
    return TrainingProcess(
        model_dir=model_dir,
        config=CONFIG,
        log_path=tmp_path / "logs" / "training.log",
        parent_adapter=parent,
        step_timeout_s=timeout_s,
    )


def pids_of(marker: str) -> list[int]:
    """Return the processes whose command line holds ``marker``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if marker in command:
                found.append(int(entry.name))
    return found


async def worker_pid(model_dir: Path) -> int:
    """Return the pid of the training process itself, not of its leash."""
    async with asyncio.timeout(30):
        while True:
            for pid in pids_of(str(model_dir)):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"agent.leash" not in command and b"learner.worker" in command:
                    return pid
            await asyncio.sleep(0.05)


async def test_steps_return_receipts_and_failures_keep_their_kind(
    model_dir: Path, tmp_path: Path, rows_path: Path
) -> None:
    equal = tmp_path / "equal.jsonl"
    write_rows(equal, [make_row(seed=1, advantage=0.0)])
    async with process_of(model_dir, tmp_path) as training:
        assert await training.effect() is None
        receipt = await training.step(rows_path, tmp_path / "step-01")
        assert receipt["parameter_change"] > 0
        with pytest.raises(NoSignalError):
            await training.step(equal, tmp_path / "step-02")
        with pytest.raises(RowError, match=r"nowhere\.jsonl"):
            await training.step(tmp_path / "nowhere.jsonl", tmp_path / "step-02")
        with pytest.raises(AdapterError, match="exists already"):
            await training.step(rows_path, tmp_path / "step-01")
        assert (await training.step(rows_path, tmp_path / "step-02"))["trained_tokens"] > 0
        effect = await training.effect()
        assert effect is not None
        assert effect["rewarded_logprob_after"] > effect["rewarded_logprob_before"]
        assert effect["objective_gain"] > 0
    assert pids_of(str(model_dir)) == []
    assert (tmp_path / "step-02" / "adapter_model.safetensors").exists()


async def test_parent_that_does_not_fit_is_an_adapter_error(
    model_dir: Path, tmp_path: Path, rows_path: Path
) -> None:
    async with process_of(model_dir, tmp_path, parent=tmp_path) as training:
        with pytest.raises(AdapterError, match="cannot read the parent"):
            await training.step(rows_path, tmp_path / "step-01")


async def test_killed_process_is_named_with_status_and_last_words(
    model_dir: Path, tmp_path: Path, rows_path: Path
) -> None:
    log = tmp_path / "logs" / "training.log"
    log.parent.mkdir()
    log.write_text("words of an earlier process\n", encoding="utf-8")
    async with process_of(model_dir, tmp_path) as training:
        await training.step(rows_path, tmp_path / "step-01")
        os.kill(await worker_pid(model_dir), signal.SIGKILL)
        with pytest.raises(TrainingError, match=r"137 \(killed, likely out of memory\)") as died:
            await training.step(rows_path, tmp_path / "step-02")
        assert "Loading weights" in died.value.message  # its last words
        assert "earlier process" not in died.value.message
        with pytest.raises(TrainingError):
            await training.step(rows_path, tmp_path / "step-03")
    assert not (tmp_path / "step-02").exists()


async def test_hung_step_is_ended(model_dir: Path, tmp_path: Path, rows_path: Path) -> None:
    async with process_of(model_dir, tmp_path, timeout_s=5.0) as training:
        os.kill(await worker_pid(model_dir), signal.SIGSTOP)
        with pytest.raises(TrainingError, match="no answer from the training process within 5 s"):
            await training.step(rows_path, tmp_path / "step-01")
    assert pids_of(str(model_dir)) == []


async def test_error_or_cancellation_in_the_block_ends_the_process(
    model_dir: Path, tmp_path: Path, rows_path: Path
) -> None:
    async def run() -> None:
        async with process_of(model_dir, tmp_path) as training:
            await training.step(rows_path, tmp_path / "step-01")

    task = asyncio.create_task(run())
    await worker_pid(model_dir)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pids_of(str(model_dir)) == []


async def test_step_outside_the_block_is_refused(
    model_dir: Path, tmp_path: Path, rows_path: Path
) -> None:
    with pytest.raises(TrainingError, match="async with"):
        await process_of(model_dir, tmp_path).step(rows_path, tmp_path / "step-01")
