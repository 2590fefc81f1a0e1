"""Measures whole learning steps, Denizen's and TRL's, on the same tasks in one run.

``python -m bench.whole_step`` prints one JSON object. A step is eight tasks with eight rollouts of
each (products and sums of single digits, reasoning-gym's letter counting; prompts of about 48
tokens, at most 20 new ones), with the packaged model and the same LoRA on both sides:

- Denizen's, by what a cycle calls: practice on a real vLLM, which samples, grades and records; one
  optimizer step in the training process; the new weights loaded into the engine and asked once,
  without which the next step cannot begin;
- TRL's: GRPOTrainer as it is, which samples with transformers (its environment is made the first
  time).

A rollout's reward falls with its answer's distance from the right one, so that nearly every group
has something to compare. Groups in which all rewards are equal are not trained by Denizen, and the
number of rows that were says so. The first step of each side warms up. Run nothing beside it.

With ``--overlap`` the other side is Denizen's own steps as ``learner.overlap`` makes them: the next
step's rollouts are sampled and graded while this one is trained, by the weights that were trained
before it. How far those are from the trained ones, and what leaves the loss for it, is shown.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import reasoning_gym  # type: ignore[import-untyped]

from agent.adapter_slot import AdapterSlot
from agent.base_model import prepare_packaged_model
from agent.engine import EngineConfig, VllmProcess
from agent.policy import PolicyClient
from agent.sampler import Sampler
from bench import trl_peer
from bench.learning_mix import scores_of
from graders.types import Answer
from learner.rollouts import GREEDY, Practice, group_of
from learner.rows import rows_of, write_rows
from learner.sources import FULL_DISTRIBUTION
from learner.trainer_config import TrainerConfig
from learner.training_process import TrainingProcess
from memory.errors import NotFoundError
from memory.store import Store
from memory.types import Grade, GradeKind, Split, TaskSpec, utc_now
from memory.version_store import BASE

TASKS_PER_STEP = 8
GROUP_SIZE = 8
MAX_TOKENS = 20
CONFIG = TrainerConfig()
OF_A_STEP = ("trained_tokens", "num_dropped_sequences", "logprob_gap", "is_weight_mean")
"""What is shown of a step's receipt."""

Batches = Sequence[Sequence[TaskSpec]]
MakeSteps = Callable[["Denizen", Batches], Awaitable[list[dict[str, Any]]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One task, for either side."""

    text: str
    answer: int


class Closeness:
    """Grades with the function that TRL is given."""

    name, version, kind = "closeness", "1", GradeKind.CHECK

    async def grade(self, answer: Answer) -> Grade:
        """Score an answer by its distance from the reference."""
        value = trl_peer.closeness(str(answer.message["content"]), int(answer.reference or 0))
        return Grade(kind=self.kind, grader=self.name, version=self.version, value=value)


class NoVersions:
    """Adapter files of a home without versions."""

    async def path_of(self, version: str) -> Path:
        """Refuse any."""
        raise NotFoundError(f"there is no {version}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Denizen:
    """What a step needs, built as the service builds it."""

    slot: AdapterSlot
    practice: Practice
    training: TrainingProcess
    folder: Path  # for this run alone
    number: int  # of the run; the names of its weights carry it

    async def in_turn(self, batches: Batches) -> list[dict[str, Any]]:
        """Make a step of each batch: sample, grade, train, swap, one after another."""
        adapter, found = BASE, []
        for index, tasks in enumerate(batches, start=1):
            began = time.perf_counter()
            step = await self._train(index, await self._sample(tasks, adapter))
            self._forget(adapter)
            adapter = step["adapter"]
            found.append(step | {"seconds": time.perf_counter() - began})
            _say(f"Denizen: {found[-1]}")
        self._forget(adapter)
        return found

    async def overlapping(self, batches: Batches) -> list[dict[str, Any]]:
        """Make the same steps, the next batch being sampled while this one is trained."""
        adapter, found = BASE, []
        sampled = await self._sample(batches[0], adapter)
        for index, following in enumerate([*batches[1:], batches[0]], start=1):
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                ahead = group.create_task(self._sample(following, adapter))
                trained = group.create_task(self._train(index, sampled))
            self._forget(adapter)
            sampled, step = ahead.result(), trained.result()
            adapter = step["adapter"]
            found.append(step | {"seconds": time.perf_counter() - began})
            _say(f"Denizen, overlapping: {found[-1]}")
        self._forget(adapter)
        return found

    def _forget(self, adapter: str) -> None:
        if adapter != BASE:
            self.slot.unload(adapter)

    async def _sample(self, tasks: Sequence[TaskSpec], adapter: str) -> dict[str, Any]:
        """Practise; return the rows and what they took."""
        began = time.perf_counter()
        tried = await self.practice.practise(
            tasks,
            adapter=adapter,
            num_samples=GROUP_SIZE,
            sampling={"temperature": 1.0, "max_tokens": MAX_TOKENS, **FULL_DISTRIBUTION},
        )
        groups = [group_of(trials, group_id=str(i)) for i, trials in enumerate(tried)]
        return {
            "rows": rows_of(groups).rows,
            "sampling_and_grading_s": time.perf_counter() - began,
            "prompt_tokens": statistics.fmean(
                len(group.rollouts[0].prompt_token_ids) for group in groups
            ),
            "reward": scores_of([trial for trials in tried for trial in trials]).mean,
            "probe": tasks[0].messages,
        }

    async def _train(self, index: int, sampled: dict[str, Any]) -> dict[str, Any]:
        """Train, and let the engine answer with what came of it."""
        began = time.perf_counter()
        out = self.folder / f"step-{index:02d}"
        write_rows(out.with_suffix(".jsonl"), sampled["rows"])
        receipt = await self.training.step(out.with_suffix(".jsonl"), out)
        trained = time.perf_counter()
        name = f"denizen-{self.number:06d}-step-{index:02d}"
        await self.slot.load_ephemeral(name, out)
        probe = {**GREEDY, "max_tokens": 1}
        await Sampler(self.slot)(
            adapter=name, messages=sampled["probe"], sampling=probe, num_samples=1
        )
        return {
            "adapter": name,
            "training_s": trained - began,
            "swap_s": time.perf_counter() - trained,
            "num_rows": len(sampled["rows"]),
            **{name: receipt[name] for name in OF_A_STEP},
            **{name: value for name, value in sampled.items() if name not in {"rows", "probe"}},
        }


def main() -> None:
    """Run the benchmark that the command line asks for."""
    options = _options()
    questions = _questions((options.steps + 1) * TASKS_PER_STEP)
    with tempfile.TemporaryDirectory(prefix="denizen-bench-") as folder:
        work = Path(folder)
        model = options.model or prepare_packaged_model(work / "models", _say)
        ways: list[MakeSteps] = [Denizen.in_turn]
        ways += [Denizen.overlapping] if options.overlap else []
        runs = asyncio.run(_denizen(questions, model, work, ways))
        if options.overlap:
            report = _compared(*(steps[1:] for steps in runs))
        else:
            report = _report(runs[0][1:], _trl(questions, model))
    print(json.dumps(report, indent=2))


async def _denizen(
    questions: Sequence[Question], model: Path, work: Path, ways: Sequence[MakeSteps]
) -> list[list[dict[str, Any]]]:
    """Make the steps in each way, on one engine; return what each took."""
    engine = VllmProcess(EngineConfig(), model=model, log_path=work / "engine.log")
    await engine.start(_say)
    try:
        async with PolicyClient(engine.url, engine.api_key) as client:
            slot = AdapterSlot([client], NoVersions())
            await slot.restore(client)
            found = [
                await _steps(questions, slot, model, work / f"run-{number}", number, make_steps)
                for number, make_steps in enumerate(ways, start=1)
            ]
            await slot.close()
            return found
    finally:
        await engine.stop()


async def _steps(
    questions: Sequence[Question],
    slot: AdapterSlot,
    model: Path,
    folder: Path,
    number: int,
    make_steps: MakeSteps,
) -> list[dict[str, Any]]:
    """Make the steps in one way, from the base model on."""
    folder.mkdir()
    store = Store(folder / "denizen.db")
    practice = Practice(
        sample=Sampler(slot), grader_of=lambda _: Closeness(), store=store, max_in_flight=16
    )
    tasks = [_task(place, question) for place, question in enumerate(questions)]
    batches = [tasks[at : at + TASKS_PER_STEP] for at in range(0, len(tasks), TASKS_PER_STEP)]
    log_path = folder / "training.log"
    async with TrainingProcess(model_dir=model, config=CONFIG, log_path=log_path) as training:
        found = await make_steps(
            Denizen(slot=slot, practice=practice, training=training, folder=folder, number=number),
            batches,
        )
    store.close()
    return found


def _trl(questions: Sequence[Question], model: Path) -> dict[str, Any]:
    task = {
        "model": str(model.resolve()),
        "rank": CONFIG.rank,
        "alpha": CONFIG.alpha,
        "targets": CONFIG.target_modules,
        "learning_rate": CONFIG.learning_rate,
        "questions": [{"text": one.text, "answer": one.answer} for one in questions],
        "tasks_per_step": TASKS_PER_STEP,
        "group_size": GROUP_SIZE,
        "max_tokens": MAX_TOKENS,
    }
    found = trl_peer.run(task)
    _say(f"TRL: {found}")
    return found


def _of(steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure, and all the times."""
    own: dict[str, Any] = {
        name: round(statistics.median(step[name] for step in steps), 3)
        for name in steps[0]
        if name != "adapter"
    }
    own["seconds_all"] = [round(step["seconds"], 2) for step in steps]
    return own


def _where() -> dict[str, Any]:
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _compared(
    in_turn: Sequence[dict[str, Any]], overlapping: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Put steps in turn beside overlapping ones."""
    one, other = _of(in_turn), _of(overlapping)
    times_faster = round(one["seconds"] / other["seconds"], 2)
    return {**_where(), "in_turn": one, "overlapping": other, "times_faster": times_faster}


def _report(steps: Sequence[dict[str, Any]], peer: dict[str, Any]) -> dict[str, Any]:
    own, theirs = _of(steps), statistics.median(peer["seconds"])
    return {
        **_where(),
        "trl_version": trl_peer.VERSION,
        "denizen": own,
        "trl": {
            "seconds": round(theirs, 2),
            "seconds_all": [round(second, 2) for second in peer["seconds"]],
            "sampling_and_grading_s": round(statistics.median(peer["sampling_s"]), 2),
            "reward": round(statistics.median(peer["rewards"]), 2),
        },
        "times_faster": round(theirs / own["seconds"], 2),
    }


def _questions(number: int) -> list[Question]:
    rng = random.Random(0)
    letters = reasoning_gym.create_dataset(
        "letter_counting", seed=0, size=number, min_words=3, max_words=5
    )

    def one(index: int) -> Question:
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        match index % 3:
            case 0:
                return Question(text=f"What is {a} * {b}? Answer with a number.", answer=a * b)
            case 1:
                return Question(text=f"What is {a} + {b}? Answer with a number.", answer=a + b)
            case _:
                entry = letters[index]
                return Question(text=entry["question"], answer=int(entry["answer"]))

    return [one(index) for index in range(number)]


def _task(number: int, question: Question) -> TaskSpec:
    return TaskSpec(
        id=f"task_{number:04d}",
        created_at=utc_now(),
        messages=({"role": "user", "content": question.text},),
        reference=str(question.answer),
        grader=Closeness.name,
        split=Split.TRAIN,
        origin="bench",
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.whole_step", description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the packaged model")
    parser.add_argument("--steps", type=int, default=5, help="steps of each side that count")
    parser.add_argument("--overlap", action="store_true", help="against overlapping steps, not TRL")
    return parser.parse_args()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
