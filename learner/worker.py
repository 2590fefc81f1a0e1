"""The training process: token rows in, adapter folders and receipts out.

``python -m learner.worker --model DIR --config JSON [--parent DIR] [--resume-from DIR]`` reads
requests from stdin, one JSON object a line, and answers each with one line on stdout:

    {"rows": "step-01.jsonl", "out": "step-01"}  ->  {"ok": true, "receipt": {...}}
                                                 or  {"ok": false, "kind": "no_signal", "error":
                                                 "..."}

``{"effect": true}`` asks what the steps have done to answers that were rewarded
(``learner.effect.Effect``, or null). ``"keep_moments": true`` in a request for a step leaves the
optimizer's moments beside the adapter, and ``--resume-from`` goes on from such a folder as the
process that wrote it would have gone on.

With ``--rows FILE --out DIR`` it answers one such request and ends. With ``--rows FILE … --run
DIR`` it makes a step on each file into ``DIR/step-01``, ``DIR/step-02``, …, each with the
optimizer's moments beside it; the same command again goes on after the last step that is there, and
ends with the same bytes as if it had never been killed.

Weights and optimizer live from request to request; end of input ends the process. ``kind`` is an
error's ``code``; anything unexpected ends the process with a traceback on stderr. It may be killed
at any instruction: an adapter folder is complete or does not exist. Where the machine runs out of
memory the kernel is told to end this process before any other; ``--max-memory-mib`` bounds what it
may ask for, and an allocation that is refused is named as such.
"""

import argparse
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

# Before torch: what cuBLAS needs to be deterministic.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from learner.adapter_files import publish, stage, sweep_staging
from learner.errors import RowError, TrainingError
from learner.rows import read_rows
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig
from memory.errors import AdapterError, DenizenError

REFUSED_BY_TORCH = "can't allocate memory"
"""In the RuntimeError of torch's allocator for the CPU."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line described above; return the exit status."""
    options = _parse(argv)
    replies = _claim_stdout()
    _bound_memory(options.max_memory_mib)
    config = TrainerConfig.model_validate_json(options.config)
    _configure_torch(config)
    requests: Iterable[str] = sys.stdin
    resume_from = options.resume_from
    if options.run is not None:
        requests, resume_from = _rest_of(options.run, options.rows)
    elif options.rows is not None:
        requests = [_request(options.rows[0], options.out)]
    try:
        with _naming_memory():
            trainer = Trainer(
                options.model, config, parent_adapter=options.parent, resume_from=resume_from
            )
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
    """Make one step and publish its adapter, or say what the steps did; return the reply."""
    try:
        request = json.loads(line)
        if "effect" in request:
            return _effect(trainer)
        rows_path, out = Path(request["rows"]), Path(request["out"])
    except (ValueError, KeyError, TypeError) as error:
        return _failure(RowError(f"not a request ({error}): {line[:200]!r}"))
    try:
        if out.exists():
            raise AdapterError(f"{out} exists already and is never overwritten")
        with _naming_memory():
            receipt = trainer.step(read_rows(rows_path))
        if request.get("keep_moments"):
            trainer.save_moments(out)
        publish_adapter(trainer, out)
    except DenizenError as error:
        return _failure(error)
    return {"ok": True, "receipt": receipt.to_json()}


def _effect(trainer: Trainer) -> dict[str, Any]:
    try:
        with _naming_memory():
            effect = trainer.effect()
    except DenizenError as error:
        return _failure(error)
    return {"ok": True, "receipt": None if effect is None else effect.to_json()}


def publish_adapter(trainer: Trainer, out: Path) -> None:
    """Write the adapter beside ``out`` and give it that name when it is complete and on disk."""
    staging = stage(out.parent)
    try:
        trainer.save(staging)
        publish(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)  # gone already when it was published


def _rest_of(run: Path, rows: Sequence[Path]) -> tuple[list[str], Path | None]:
    """Return the requests that a run still has to answer, and the step that it goes on from."""
    run.mkdir(parents=True, exist_ok=True)
    sweep_staging(run)
    outs = [run / f"step-{number:02d}" for number in range(1, len(rows) + 1)]
    num_done = max((n for n, out in enumerate(outs, start=1) if out.exists()), default=0)
    requests = [
        _request(file, out, keep_moments=True)
        for file, out in zip(rows[num_done:], outs[num_done:], strict=True)
    ]
    return requests, outs[num_done - 1] if num_done else None


def _request(rows: Path, out: Path, *, keep_moments: bool = False) -> str:
    return json.dumps({"rows": str(rows), "out": str(out), "keep_moments": keep_moments})


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m learner.worker")
    parser.add_argument("--model", type=Path, required=True, help="base model folder")
    parser.add_argument("--config", required=True, help="TrainerConfig as JSON")
    parser.add_argument("--parent", type=Path, help="adapter folder to continue from")
    parser.add_argument("--resume-from", type=Path, help="adapter folder with moments beside it")
    parser.add_argument("--max-memory-mib", type=int, help="bound of what is allocated")
    parser.add_argument("--rows", type=Path, nargs="+", help="make a step on each file and end")
    parser.add_argument("--out", type=Path, help="where the one step's adapter goes")
    parser.add_argument("--run", type=Path, help="where the steps' adapters go; resumes")
    options = parser.parse_args(argv)
    if (options.rows is None) != (options.out is None and options.run is None):
        parser.error("--rows and --out, or --rows and --run, belong together")
    if options.out is not None and (options.run is not None or len(options.rows) > 1):
        parser.error("--out is for one step; several steps go to --run")
    return options


def _claim_stdout() -> TextIO:
    """Keep stdout for replies; whatever else writes to descriptor 1 goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return replies


def _bound_memory(max_mib: int | None) -> None:
    """Let the kernel end this process first, and refuse it more memory than it may have."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if max_mib is not None:
        size = max_mib * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


@contextmanager
def _naming_memory() -> Iterator[None]:
    """Say of an allocation that was refused that it was one.

    Raises:
        TrainingError: it was.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        is_refusal = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not is_refusal and REFUSED_BY_TORCH not in str(error):
            raise
        most, _ = resource.getrlimit(resource.RLIMIT_DATA)
        bound = "" if most == resource.RLIM_INFINITY else f" of {most // 2**20} MiB"
        raise TrainingError(
            f"training ran out of memory{bound}; smaller learner.tokens_per_microbatch or "
            f"gradient_checkpointing takes less. {str(error).splitlines()[0] if str(error) else ''}"
        ) from error


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
