"""The training process: token rows in, adapter folders and receipts out.

``python -m learner.worker --model DIR --config JSON [--parent DIR]`` reads requests from stdin,
one JSON object a line, and answers each with one line on stdout:

    {"rows": "step-01.jsonl", "out": "step-01"}  ->  {"ok": true, "receipt": {...}}
                                                 or  {"ok": false, "kind": "no_signal", "error":
                                                 "..."}

With ``--rows FILE --out DIR`` it answers one such request and ends. Weights and optimizer live
from request to request; end of input ends the process. ``kind`` is an error's ``code``; anything
unexpected ends the process with a traceback on stderr. It may be killed at any instruction: an
adapter folder is complete or does not exist.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

# Before torch: what cuBLAS needs to be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from learner.adapter_files import publish, stage
from learner.errors import RowError
from learner.rows import read_rows
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from memory.errors import AdapterError, DenizenError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line described above; return the exit status."""
    options = _parse(argv)
    replies = _claim_stdout()
    config = TrainerConfig.model_validate_json(options.config)
    _configure_torch(config)
    requests: Iterable[str] = sys.stdin
    if options.rows is not None:
        requests = [json.dumps({"rows": str(options.rows), "out": str(options.out)})]
    try:
        trainer = Trainer(options.model, config, parent_adapter=options.parent)
    except DenizenError as error:
        _reply(replies, _failure(error))
        return 1
    is_ok = True
    for line in requests:
        answer = answer_request(trainer, line)
        is_ok = bool(answer["ok"])
        _reply(replies, answer)
    return 0 if is_ok or options.rows is None else 1


def answer_request(trainer: Trainer, line: str) -> dict[str, Any]:
    """Make one step and publish its adapter; return the reply."""
    try:
        request = json.loads(line)
        rows_path, out = Path(request["rows"]), Path(request["out"])
    except (ValueError, KeyError, TypeError) as error:
        return _failure(RowError(f"not a request ({error}): {line[:200]!r}"))
    try:
        if out.exists():
            raise AdapterError(f"{out} exists already and is never overwritten")
        receipt = trainer.step(read_rows(rows_path))
        publish_adapter(trainer, out)
    except DenizenError as error:
        return _failure(error)
    return {"ok": True, "receipt": receipt.to_json()}


def publish_adapter(trainer: Trainer, out: Path) -> None:
    """Write the adapter beside ``out`` and give it that name when it is complete and on disk."""
    staging = stage(out.parent)
    try:
        trainer.save(staging)
        publish(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # gone already when it was published


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m learner.worker")
    parser.add_argument("--model", type=Path, required=True, help="base model folder")
    parser.add_argument("--config", required=True, help="TrainerConfig as JSON")
    parser.add_argument("--parent", type=Path, help="adapter folder to continue from")
    parser.add_argument("--rows", type=Path, help="make one step on these rows and end")
    parser.add_argument("--out", type=Path, help="where that step's adapter goes")
    options = parser.parse_args(argv)
    if (options.rows is None) != (options.out is None):
        parser.error("--rows and --out belong together")
    return options


def _claim_stdout() -> TextIO:
    """Keep stdout for replies; whatever else writes to descriptor 1 goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _configure_torch(config: TrainerConfig) -> None:
    torch.use_deterministic_algorithms(True)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)


def _reply(replies: TextIO, answer: dict[str, Any]) -> None:
    replies.write(json.dumps(answer, allow_nan=False) + "\n")
    replies.flush()


def _failure(error: DenizenError) -> dict[str, Any]:
    return {"ok": False, "kind": error.code, "error": error.message}


if __name__ == "__main__":
    sys.exit(main())
