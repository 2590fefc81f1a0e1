"""Kills a training run again and again, lets it go on, and compares what it ends with.

``python -m bench.training_kills --of cycle --kills 100`` kills a whole service while it runs a
learning cycle, up to three times in one cycle, and starts it again until the cycle ends
(``bench/cycle_kills.py``). Prints one JSON object: in which phases services were killed, how many
cycles ended with the undisturbed one's adapter, byte by byte, and verdict, and how many adapters
were listed at a kill that were not whole.

``python -m bench.training_kills --kills 100`` kills the training process alone: it makes a tiny
random model, trains four steps without a disturbance, then does the same with SIGKILL at a random
instant of a run and one more run that goes on from what is there. An instant is counted from a step
of the run itself, each step in turn, and is drawn again when the run had ended by then: a busy
machine moves no kill to where there is nothing to lose. Prints one JSON object: how many kills hit
a run that had steps to go on from, how many left an adapter folder that is not whole, how many
ended with the undisturbed run's bytes, and how many came too late and were drawn again.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.child import forked, say
from bench.cycle_kills import kill_cycles
from learner import worker
from learner.adapter_format import CONFIG_NAME
from learner.adapter_weights import WEIGHTS_NAME, read_layers
from learner.rows import write_rows
from learner.runner import MAX_DEATHS
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from memory.errors import AdapterError
from tests.learner.training_rows import make_row
from tests.tiny_model import save_tiny_model

CONFIG = TrainerConfig(rank=4, alpha=8, num_threads=1)
NUM_STEPS = 4
LOADED, STEP = "loaded", "a step is done"
"""What a run says."""

WITHOUT_SIGNAL = 1
"""The index of a step that makes no adapter, for a resumed run to step over."""


def main() -> None:
    """Run the benchmark that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.training_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--of", choices=["training", "cycle"], default="training")
    parser.add_argument("--kills-per-cycle", type=int, default=MAX_DEATHS)
    parser.add_argument("--forked-workers", action="store_true", help="load torch only once")
    parser.add_argument("--overlap", action="store_true", help="of a cycle: learner.overlap")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a fork has one thread, and so must its parent
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        rng = random.Random(options.seed)
        if options.of == "cycle":
            forked(lambda: _save(Path(folder) / "model"))
            found = kill_cycles(
                Path(folder),
                options.kills,
                most_in_a_cycle=options.kills_per_cycle,
                is_forked=options.forked_workers,
                overlaps=options.overlap,
                rng=rng,
            )
        else:
            found = _kill(Path(folder), options.kills, rng)
        print(json.dumps(found))


def _kill(folder: Path, num_kills: int, rng: random.Random) -> dict[str, Any]:
    model, rows = folder / "model", _row_files(folder)
    forked(lambda: _save(model))  # progress bars leave a thread behind
    began = time.perf_counter()
    said = forked(partial(_run, model, folder / "whole", rows)).decode()
    seconds = time.perf_counter() - began
    if said.splitlines() != [LOADED, *[STEP] * NUM_STEPS]:
        raise RuntimeError(f"the undisturbed run failed: {said}")
    expected = _bytes_of(folder / "whole")
    counts = dict.fromkeys(("num_late", "num_resumed", "num_half_written", "num_same_bytes"), 0)
    for number in range(num_kills):
        run = folder / f"run-{number}"
        work = partial(_run, model, run, rows)
        kill_after_lines = number % (1 + NUM_STEPS)
        longest_s = seconds / (1 + NUM_STEPS)  # about what a step takes
        forked(work, rng.uniform(0, longest_s), kill_after_lines=kill_after_lines)
        while _bytes_of(run) == expected:
            counts["num_late"] += 1
            shutil.rmtree(run)
            longest_s /= 2  # the machine is less busy now than it was when this was measured
            forked(work, rng.uniform(0, longest_s), kill_after_lines=kill_after_lines)
        counts["num_resumed"] += bool(_steps_of(run))
        counts["num_half_written"] += not all(_is_whole(step) for step in _steps_of(run))
        said = forked(work).decode()
        found = _bytes_of(run)
        counts["num_same_bytes"] += found == expected
        if found != expected:
            names = sorted(name for name, data in expected.items() if found.get(name) != data)
            print(f"run {number}: {names} differ; it said {said!r}", file=sys.stderr)
    return {
        "num_kills": num_kills,
        **counts,
        "num_adapters": len(_steps_of(folder / "whole")),
        "seconds_of_a_run": round(seconds, 2),
    }


def _save(model: Path) -> None:
    torch.set_num_threads(1)
    save_tiny_model(model)


def _run(model: Path, run: Path, rows: list[Path]) -> None:
    """Do what ``python -m learner.worker --rows … --run DIR`` does, without loading torch anew.

    Says a line when the model is loaded, and one after each step.
    """
    # Torch renews its thread pool when it is first asked for it after a fork. Two threads that ask
    # at once, as transformers' loader has them, fail with "Invalid thread pool!".
    worker._configure_torch(CONFIG)
    requests, resume_from = worker._rest_of(run, rows)
    trainer = Trainer(model, CONFIG, resume_from=resume_from)
    say(LOADED)
    for line in requests:
        reply = worker.answer_request(trainer, line)
        say(STEP if reply["ok"] or reply["kind"] == "no_signal" else str(reply))


def _row_files(folder: Path) -> list[Path]:
    files = [folder / f"rows-{number}.jsonl" for number in range(NUM_STEPS)]
    for number, file in enumerate(files):
        advantages = (0.0, 0.0) if number == WITHOUT_SIGNAL else (0.5, -0.5)
        write_rows(
            file, [make_row(seed=9 * number + i, advantage=advantages[i % 2]) for i in (0, 1)]
        )
    return files


def _steps_of(run: Path) -> list[Path]:
    return sorted(path for path in run.glob("step-*") if path.is_dir())


def _bytes_of(run: Path) -> dict[str, bytes]:
    return {
        f"{step.name}/{name}": (step / name).read_bytes()
        for step in _steps_of(run)
        for name in (WEIGHTS_NAME, CONFIG_NAME)
        if (step / name).exists()
    }


def _is_whole(step: Path) -> bool:
    try:
        return bool(read_layers(step / WEIGHTS_NAME)) and (step / CONFIG_NAME).exists()
    except (AdapterError, OSError):
        return False


if __name__ == "__main__":
    main()
