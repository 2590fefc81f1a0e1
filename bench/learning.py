"""Measures learning: practice against TRL, single live episodes, and two skills one after another.

``python -m bench.learning`` starts the engine with the packaged model, runs the parts below and
prints one JSON object; ``--only`` chooses among them. Held-out tasks are answered greedily by the
same engine in all parts; a score is the share of right answers.

- ``practice``: Denizen against TRL's GRPOTrainer, by turns: held-out score against seconds and
  rollouts, and the share of TRL's time in which Denizen reaches what TRL has in the end. Half an
  hour on two cores; nothing should run beside it.
- ``live``: tasks answered once, with a baseline from the neighbours' outcomes and with the mean of
  all, on several seeds; practice on as many rollouts beside it. 35 minutes.
- ``sequence``: letters, then products with rehearsal and without: what it costs the letters. Ten
  minutes.

What is known so far also goes into a file, so that a run that is stopped is not lost.
"""

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from agent.base_model import prepare_packaged_model
from bench import live_run, practice_against_trl, sequence_run
from bench.workbench import Keep, Workbench, opened, say
from learner.curriculum import LearnerConfig

PARTS = ("practice", "live", "sequence")


class Results:
    """What was found, written to a file whenever it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, Any] = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "date": datetime.now(UTC).date().isoformat(),
        }

    def keep(self, part: str, found: dict[str, Any]) -> None:
        """Add to a part."""
        self.found[part] = self.found.get(part, {}) | found
        self._path.write_text(json.dumps(self.found, indent=2), encoding="utf-8")


async def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _options()
    results = Results(options.results)
    say(f"results so far: {options.results}")
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        model = options.model or prepare_packaged_model(Path(folder) / "models", say)
        async with opened(model, Path(folder)) as bench:
            for part in options.only:
                began = time.monotonic()
                say(part)
                found = await _measure(part, bench, options, partial(results.keep, part))
                results.found[part] = found | {"minutes": round((time.monotonic() - began) / 60, 1)}
    print(json.dumps(results.found, indent=2))


async def _measure(
    part: str, bench: Workbench, options: argparse.Namespace, keep: Keep
) -> dict[str, Any]:
    config = LearnerConfig()
    if part == "practice":
        return await practice_against_trl.measure(
            bench, seed=options.seed, num_steps=options.steps, config=config, keep=keep
        )
    if part == "sequence":
        return await sequence_run.measure(
            bench, seed=options.seed, num_steps=options.sequence_steps, config=config, keep=keep
        )
    return await live_run.measure(
        bench,
        seeds=range(options.seed, options.seed + options.seeds),
        num_steps=options.live_steps,
        config=config,
        keep=keep,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the packaged model")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    parser.add_argument("--seed", type=int, default=0, help="the first, or only, one")
    parser.add_argument("--steps", type=int, default=30, help="TRL's steps in practice")
    parser.add_argument("--seeds", type=int, default=5, help="how many in live")
    parser.add_argument("--live-steps", type=int, default=12, help="optimizer steps in live")
    parser.add_argument("--sequence-steps", type=int, default=12, help="for each of two skills")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(tempfile.gettempdir()) / "denizen-bench-learning.json",
        help="what is known so far goes there",
    )
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(main())
