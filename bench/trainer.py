"""Measures an optimizer step: shared beginnings, repeated ones, the textbook way, and TRL.

``python -m bench.trainer`` prints one JSON object. Every way trains the same rollouts with the same
model, LoRA and objective on this machine, one process after another, by turns:

- ``shared``: the trainer as it is;
- ``repeated``: the same code, told to share nothing;
- ``textbook``: the same trainer with rows padded to the longest, transformers' own attention (sdpa)
  and the logits of every position;
- ``trl``: TRL's GRPOTrainer on the given rollouts, without its sampling (its environment is made
  the first time; ``bench.whole_step`` compares whole steps).

A step's tokens per second count every row in full, so that the ways compare. Memory is the
process's peak, and what the steps added to what the loaded model takes. Operations are those of the
matrix products of a step, counted: two ways that work at the same rate take times in their
proportion. Run nothing beside it.
"""

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from agent.base_model import prepare_packaged_model
from bench import trl_peer
from learner import forests
from learner.losses import LossStats, policy_loss
from learner.microbatches import collate
from learner.rows import TrainingRow
from learner.trainer import Trainer
from learner.trainer_config import TrainerConfig

WAYS = ("shared", "repeated", "textbook", "trl")
SHAPES = ("8x8x48x20", "4x8x512x64")
VOCABULARY = 49_000
NEVER = 10**9
COUNTED = ("shared", "repeated")
"""Ways whose products torch's counter knows; it does not know the attention of the others."""

CONFIG = TrainerConfig(max_sequence_gap=1e9)
"""Tokens are random, and so are their log-probabilities: no sequence is to be dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Prompts × rollouts of each × prompt tokens × completion tokens."""

    num_prompts: int
    group_size: int
    prompt_tokens: int
    completion_tokens: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Read ``8x8x48x20``."""
        prompts, group, prompt, completion = (int(part) for part in text.split("x"))
        return cls(
            num_prompts=prompts,
            group_size=group,
            prompt_tokens=prompt,
            completion_tokens=completion,
        )

    @property
    def num_row_tokens(self) -> int:
        """Tokens of all rows, prompts counted in each."""
        length = self.prompt_tokens + self.completion_tokens
        return self.num_prompts * self.group_size * length


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollouts:
    """What every way trains."""

    prompts: list[list[int]]
    completions: list[list[list[int]]]
    advantages: list[list[float]]

    @classmethod
    def of(cls, shape: Shape) -> "Rollouts":
        """Draw random tokens; half of a group's rollouts are better than the other half."""
        rng = random.Random(0)

        def tokens(number: int) -> list[int]:
            return [rng.randrange(VOCABULARY) for _ in range(number)]

        return cls(
            prompts=[tokens(shape.prompt_tokens) for _ in range(shape.num_prompts)],
            completions=[
                [tokens(shape.completion_tokens) for _ in range(shape.group_size)]
                for _ in range(shape.num_prompts)
            ],
            advantages=[
                [(0.5, -0.5)[i % 2] for i in range(shape.group_size)]
                for _ in range(shape.num_prompts)
            ],
        )

    def rows(self) -> list[TrainingRow]:
        """Return them as training rows, log-probabilities near those of a sampler at a loss."""
        return [
            TrainingRow(
                group_id=str(number),
                token_ids=(*prompt, *completion),
                loss_mask=(False,) * len(prompt) + (True,) * len(completion),
                sampler_logprobs=(None,) * len(prompt) + (-10.0,) * len(completion),
                advantages=(0.0,) * len(prompt) + (advantage,) * len(completion),
            )
            for number, prompt in enumerate(self.prompts)
            for completion, advantage in zip(
                self.completions[number], self.advantages[number], strict=True
            )
        ]


class TextbookTrainer(Trainer):
    """Computes rows as peers do: padded to the longest, every position's logits."""

    def _sum_gradients(self, rows: Sequence[TrainingRow]) -> Any:
        self._optimizer.zero_grad(set_to_none=True)
        self._causal_lm.set_attn_implementation("sdpa")
        stats, loss_sum, num_tokens = LossStats(), 0.0, 0
        longest = max(len(row.token_ids) for row in rows)
        num_rows = max(1, self.config.tokens_per_microbatch // longest)
        for start in range(0, len(rows), num_rows):
            some = rows[start : start + num_rows]
            ids_BT = torch.tensor(
                [[*row.token_ids, *[0] * (longest - len(row.token_ids))] for row in some]
            )
            logits_BTV = self._causal_lm(input_ids=ids_BT, use_cache=False).logits
            losses_BT = cross_entropy(
                logits_BTV[:, :-1].flatten(0, 1).float(), ids_BT[:, 1:].flatten(), reduction="none"
            ).view(len(some), -1)
            mask_BT = torch.tensor(
                [[*row.loss_mask, *[False] * (longest - len(row.token_ids))] for row in some]
            )
            batch = collate(some, torch.device("cpu"))
            loss, some_stats = policy_loss(
                -losses_BT[mask_BT[:, 1:]],
                batch.sampler_logprobs_N,
                batch.advantages_N,
                batch.row_N,
                num_sequences=len(some),
                config=self.config,
            )
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += float(loss.detach())
            stats += some_stats
            num_tokens += ids_BT.numel()
        return _Summed(stats, num_tokens, loss_sum)


@dataclass(frozen=True, slots=True)
class _Summed:
    stats: LossStats
    num_tokens: int
    loss_sum: float
    forward_s: float = 0.0
    backward_s: float = 0.0


def main() -> None:
    """Run the benchmark, or one way of it in a process of its own."""
    options = _options()
    if options.way:
        config = CONFIG.model_copy(update={"tokens_per_microbatch": options.budget})
        way, shape = options.way, options.shapes[0]
        print(json.dumps(_measure(way, shape, options.model, options.steps, config)))
        return
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        model = options.model or prepare_packaged_model(Path(folder), _say)
        measured = {
            shape: _by_turns(options.ways, shape, model, options) for shape in options.shapes
        }
    print(json.dumps({"budget": options.budget} | _report(measured), indent=2))


def _by_turns(
    ways: Sequence[str], shape: str, model: Path, options: argparse.Namespace
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways:
            _say(f"{shape}, {way}, round {number + 1} of {options.rounds}")
            arguments = ["--way", way, "--shapes", shape, "--steps", str(options.steps)]
            arguments += ["--budget", str(options.budget)]
            command = [sys.executable, "-m", "bench.trainer", *arguments, "--model", str(model)]
            ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[way].append(json.loads(ended.stdout))
            _say(f"  {found[way][-1]}")
    return found


def _measure(
    way: str, shape: str, model: Path, steps: int, config: TrainerConfig
) -> dict[str, Any]:
    """Make a small step that warms up, then steps that count."""
    rollouts = Rollouts.of(Shape.parse(shape))
    if way == "trl":
        task = {
            "model": str(model.resolve()),
            "rank": CONFIG.rank,
            "alpha": CONFIG.alpha,
            "targets": CONFIG.target_modules,
            "learning_rate": CONFIG.learning_rate,
            "prompts": rollouts.prompts,
            "completions": rollouts.completions,
            "advantages": rollouts.advantages,
            "num_steps": steps,
        }
        return trl_peer.run(task)
    kind = TextbookTrainer if way == "textbook" else Trainer
    trainer = kind(model, config)
    loaded = _peak_mib()
    rows = rollouts.rows()
    seconds = []
    alone = patch.object(forests, "MIN_SHARED", NEVER) if way == "repeated" else nullcontext()
    with alone:
        trainer.step(rows[:2])
        for _ in range(steps):
            began = time.perf_counter()
            receipt = trainer.step(rows)
            seconds.append(time.perf_counter() - began)
        peak = _peak_mib()
        operations = _operations(trainer, rows) if way in COUNTED else None
    return {
        "seconds": seconds,
        "peak_memory_mib": peak,
        "tera_operations": operations and round(operations, 3),
        "loaded_memory_mib": loaded,
        "computed_tokens": receipt.num_tokens,
        "loss": receipt.loss,
    }


def _operations(trainer: Trainer, rows: Sequence[TrainingRow]) -> float:
    """Count the operations of a step's matrix products, in units of 1e12."""

    def in_place(_sum: Any, left_TI: Any, right_IO: Any, **_given: Any) -> int:
        return int(2 * left_TI[0] * left_TI[1] * right_IO[1])

    counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place})
    with counter:
        trainer.step(rows)
    return counter.get_total_flops() / 1e12


def _report(measured: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__,
        "trl": trl_peer.VERSION,
    }
    for shape, ways in measured.items():
        row_tokens = Shape.parse(shape).num_row_tokens
        report[shape] = {way: _summary(rounds, row_tokens) for way, rounds in ways.items()}
        if "shared" in ways:
            for way, rounds in ways.items():
                times = _times(rounds, ways["shared"])
                report[shape][way]["times_shared"] = round(statistics.median(times), 2)
                report[shape][way]["times_shared_in_each_round"] = [round(x, 2) for x in times]
    return report


def _times(rounds: list[dict[str, Any]], shared: list[dict[str, Any]]) -> list[float]:
    """Return how much longer a step takes, round by round: machines are faster at times."""
    return [
        statistics.median(one["seconds"]) / statistics.median(other["seconds"])
        for one, other in zip(rounds, shared, strict=True)
    ]


def _summary(rounds: list[dict[str, Any]], row_tokens: int) -> dict[str, Any]:
    seconds = [second for one in rounds for second in one["seconds"]]
    median = statistics.median(seconds)
    added = max(one["peak_memory_mib"] - one["loaded_memory_mib"] for one in rounds)
    return {
        "seconds": round(median, 2),
        "seconds_all": [round(second, 2) for second in seconds],
        "row_tokens_per_s": round(row_tokens / median),
        "computed_tokens": rounds[0].get("computed_tokens", row_tokens),
        "tera_operations": rounds[0].get("tera_operations"),
        "peak_memory_mib": round(max(one["peak_memory_mib"] for one in rounds)),
        "step_memory_mib": round(added),
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.trainer", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the packaged model")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), help=Shape.__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way")
    parser.add_argument("--steps", type=int, default=2, help="steps of each process that count")
    parser.add_argument(
        "--budget",
        type=int,
        default=CONFIG.tokens_per_microbatch,
        help="tokens computed together, learner.tokens_per_microbatch",
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: all")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
