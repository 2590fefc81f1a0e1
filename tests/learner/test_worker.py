import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from learner import worker
from learner.adapter_format import inspect
from learner.adapter_weights import WEIGHTS_NAME
from learner.errors import TrainingError
from learner.fit import linear_shapes
from learner.moments import load
from learner.rows import write_rows
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from tests.learner.training_rows import make_row, make_rows
from tests.tiny_model import save_tiny_model

ROOT = Path(__file__).parents[2]
CONFIG = TrainerConfig(rank=4, alpha=8, num_threads=1)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def trainer(model_dir: Path) -> Trainer:
    return Trainer(model_dir, CONFIG)


def run_worker(
    model_dir: Path, *arguments: str, requests: list[str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "learner.worker", "--model", str(model_dir)),
            *("--config", CONFIG.model_dump_json(), *arguments),
        ],
        input="".join(line + "\n" for line in requests or []),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def request(rows: Path, out: Path) -> str:
    return json.dumps({"rows": str(rows), "out": str(out)})


def row_file(folder: Path, *, is_equal: bool = False) -> Path:
    path = folder / ("equal.jsonl" if is_equal else "rows.jsonl")
    write_rows(path, [make_row(seed=1, advantage=0.0)] * 2 if is_equal else make_rows())
    return path


def test_requests_are_answered_in_turn_on_stdout_alone(model_dir: Path, tmp_path: Path) -> None:
    rows, equal = row_file(tmp_path), row_file(tmp_path, is_equal=True)
    ended = run_worker(
        model_dir,
        requests=[
            request(rows, tmp_path / "a"),
            request(equal, tmp_path / "b"),
            "not json",
            request(rows, tmp_path / "c"),
        ],
    )
    assert ended.returncode == 0, ended.stderr
    replies = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [reply["ok"] for reply in replies] == [True, False, False, True]
    assert replies[0]["receipt"]["trained_tokens"] > 0
    assert replies[1]["kind"] == "no_signal"
    assert replies[2]["kind"] == "rows"
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["a", "c"]
    # The optimizer's moments live on: the second step is not the first one again.
    assert replies[3]["receipt"]["loss"] != replies[0]["receipt"]["loss"]
    for name in "ac":
        facts = inspect(tmp_path / name, base_shapes=linear_shapes(model_dir))
        assert (facts.rank, facts.alpha) == (4, 8)


def test_one_step_form_continues_from_a_parent(model_dir: Path, tmp_path: Path) -> None:
    trainer = Trainer(model_dir, CONFIG)
    trainer.step(make_rows())
    parent, out = tmp_path / "parent", tmp_path / "out"
    worker.publish_adapter(trainer, parent)
    rows = str(row_file(tmp_path))
    ended = run_worker(
        model_dir, "--rows", rows, "--out", str(out), "--parent", str(parent), requests=["ignored"]
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["ok"]
    again = Trainer(model_dir, CONFIG, parent_adapter=parent)
    again.step(make_rows())
    worker.publish_adapter(again, tmp_path / "again")
    assert (out / WEIGHTS_NAME).read_bytes() == (tmp_path / "again" / WEIGHTS_NAME).read_bytes()


def test_prints_of_libraries_do_not_reach_the_protocol(
    capfd: pytest.CaptureFixture[str],
) -> None:
    stdout = os.dup(1)
    try:
        with worker._claim_stdout() as replies:
            os.write(1, b"a library speaks\n")
            worker._reply(replies, {"ok": True})
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"ok": True}
    assert captured.err == "a library speaks\n"


def test_existing_folder_is_left_alone(trainer: Trainer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "file").touch()
    reply = worker.answer_request(trainer, request(row_file(tmp_path), out))
    assert (reply["ok"], reply["kind"]) == (False, "adapter_error")
    assert [p.name for p in out.iterdir()] == ["file"]


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"rows": "a"}', '{"rows": 1, "out": 2}', "null"])
def test_malformed_request_is_answered(trainer: Trainer, line: str) -> None:
    reply = worker.answer_request(trainer, line)
    assert (reply["ok"], reply["kind"]) == (False, "rows")


def test_failed_save_leaves_nothing_behind(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        (folder / WEIGHTS_NAME).write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(trainer, "save", fail)
    rows = row_file(tmp_path)
    with pytest.raises(OSError, match="no space"):
        worker.answer_request(trainer, request(rows, tmp_path / "out"))
    assert list(tmp_path.iterdir()) == [rows]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rows", "x"],
        ["--out", "y"],
        ["--rows", "x", "z", "--out", "y"],
        ["--rows", "x", "--out", "y", "--run", "z"],
    ],
)
def test_rows_and_where_steps_go_belong_together(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit):
        worker.main(["--model", "m", "--config", "{}", *arguments])
    assert "--out" in capsys.readouterr().err


def test_a_run_goes_on_only_from_moments_of_its_own_adapter(
    model_dir: Path, tmp_path: Path
) -> None:
    requests, resume_from = worker._rest_of(tmp_path / "run", [row_file(tmp_path)])
    assert resume_from is None
    worker.answer_request(Trainer(model_dir, CONFIG), requests[0])
    requests, resume_from = worker._rest_of(tmp_path / "run", [row_file(tmp_path)])
    assert (requests, resume_from) == ([], tmp_path / "run/step-01")
    with pytest.raises(TrainingError, match="does not match"):
        fewer = CONFIG.model_copy(update={"target_modules": ("q_proj",)})
        moments = tmp_path / "run/step-01.moments.safetensors"
        other = Trainer(model_dir, fewer)
        load(moments, other._optimizer, other._named_parameters())
