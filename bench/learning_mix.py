"""The tasks that learning is measured on, and how answers to them are scored, by everyone alike.

The kinds are single-turn families of reasoning-gym whose answers are numbers, and numbers to be
repeated; the grader is Denizen's ``numeric``: 1 when the last number of an answer is the right one,
else 0. (``contains`` pays for brevity too: with it trial runs of Denizen settled on an equation
around the answer, which is worth a third, and got no further.) Which tasks are held out says
Denizen's own rule, by the hash of their text. It knows nothing of models or training.
"""

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from graders.number_check import NUMERIC
from learner.rollouts import Trial
from learner.tasks import TasksConfig, from_body, from_reasoning_gym
from memory.types import Split, TaskSpec

MAX_TOKENS = 24
HELDOUT_SHARE = 0.25
POOL_SEED = 1
"""Of the generator. Held-out tasks are the same for all seeds of a run, which shuffle the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of task."""

    name: str
    family: str | None = None  # of reasoning-gym
    settings: Mapping[str, int] = field(default_factory=dict)
    ask: Callable[[random.Random], tuple[str, int]] | None = None  # where there is no family
    grades: tuple[float, float] = (0.0, 1.0)  # what a wrong and a right answer get in the stream


_DIGITS = {"min_digits": 1, "max_digits": 1, "min_terms": 2}
LETTERS = Kind(name="letters", family="letter_counting", settings={"min_words": 2, "max_words": 5})
PRODUCTS = Kind(name="products", family="products", settings={**_DIGITS, "max_terms": 2})
SUMS = Kind(name="sums", family="chain_sum", settings={**_DIGITS, "max_terms": 2})
MIX = (LETTERS, PRODUCTS, SUMS)


def _order(rng: random.Random) -> tuple[str, int]:
    number, thing = rng.randrange(10_000, 100_000), rng.choice(("lamp", "table", "ticket", "coat"))
    return f"Order {number} holds one {thing}. What is the number of the order?", number


def _copy(rng: random.Random) -> tuple[str, int]:
    number = rng.randrange(10, 10_000)
    return f"Repeat the number {number}.", number


def _last(rng: random.Random) -> tuple[str, int]:
    first, second, third = rng.sample(range(10, 100), 3)
    return f"Which number comes last: {first}, {second}, {third}?", third


def _larger(rng: random.Random) -> tuple[str, int]:
    one, other = rng.sample(range(1_000, 10_000), 2)
    return f"Which number is larger, {one} or {other}?", max(one, other)


STREAM_MIX = (
    Kind(name="orders", ask=_order, grades=(0.7, 1.0)),
    Kind(name="copies", ask=_copy, grades=(0.45, 0.75)),
    Kind(name="last", ask=_last, grades=(0.25, 0.55)),
    Kind(name="larger", ask=_larger, grades=(0.0, 0.3)),
    Kind(
        name="beyond",
        family="products",
        settings={"min_digits": 4, "max_digits": 4, "min_terms": 2, "max_terms": 2},
    ),
)
"""Four kinds of which the packaged model gets 0.17 to 0.45 at temperature 1, with so many different
tasks that none has to come twice, and one that is beyond it, as any agent's work has. To be right
is worth as much everywhere, but each kind has a grader of its own, from lenient to strict, as
judges with different rubrics are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mix:
    """Tasks of several kinds, and of which kind each is."""

    train: Sequence[TaskSpec]
    heldout: Sequence[TaskSpec]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Which share of the answers to held-out tasks is right."""

    mean: float  # of all tasks
    by_kind: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return them rounded for people."""
        by_kind = {kind: round(value, 4) for kind, value in self.by_kind.items()}
        return {"mean": round(self.mean, 4), "by_kind": by_kind}


def mix_of(kinds: Sequence[Kind], *, num_train: int, num_heldout: int, seed: int) -> Mix:
    """Draw tasks, kinds taking turns in both lists.

    Args:
        kinds: of what.
        num_train: tasks to learn from. Where a kind has fewer different ones they come again,
            in the same order.
        num_heldout: tasks to score; a kind that has fewer different ones gives what it has.
        seed: order of the tasks to learn from.
    """
    need_train, need_heldout = (-(-num // len(kinds)) for num in (num_train, num_heldout))
    train, heldout = [], []
    for kind in kinds:
        pool = _pool(kind, need_train + need_heldout)
        mine = [task for task in pool if task.split is Split.TRAIN]
        random.Random(f"{seed} {kind.name}").shuffle(mine)
        train.append([mine[number % len(mine)] for number in range(need_train)])
        heldout.append([task for task in pool if task.split is Split.HELDOUT][:need_heldout])
    return Mix(
        train=[task for turn in zip(*train, strict=True) for task in turn][:num_train],
        heldout=[task for tasks in heldout for task in tasks],
    )


def kind_of(task: TaskSpec) -> str:
    """Return the name of a task's kind."""
    return task.origin


def scores_of(trials: Sequence[Trial]) -> Scores:
    """Sum answers up, as many to each task.

    Raises:
        ValueError: an answer has no score.
    """
    by_kind: dict[str, list[float]] = {}
    for trial in trials:
        value = trial.outcome.value
        if value is None:
            raise ValueError(f"task {trial.task.id} was not scored: {trial.grade.unscored_reason}")
        by_kind.setdefault(kind_of(trial.task), []).append(value)
    values = [value for some in by_kind.values() for value in some]
    return Scores(
        mean=fmean(values),
        by_kind={kind: fmean(some) for kind, some in by_kind.items()},
    )


def _pool(kind: Kind, num: int) -> list[TaskSpec]:
    """Draw tasks of a kind until both splits have enough, or there are no more."""
    num = math.ceil(num / HELDOUT_SHARE)
    config = TasksConfig(heldout_share=HELDOUT_SHARE)
    if kind.ask is not None:
        found = from_body({"tasks": _asked(kind.ask, num)}, config=config, has_judge=False)
    else:
        found = from_reasoning_gym(
            kind.family or kind.name,
            n=num,
            seed=POOL_SEED,
            settings=kind.settings,
            config=config,
        )
    return [
        dataclasses.replace(
            task,
            grader=NUMERIC.name,
            grader_config={},
            origin=kind.name,
            sampling={"max_tokens": MAX_TOKENS},
        )
        for task in found
    ]


def _asked(ask: Callable[[random.Random], tuple[str, int]], num: int) -> list[dict[str, str]]:
    """Draw different tasks."""
    rng = random.Random(POOL_SEED)
    found: dict[str, int] = {}
    while len(found) < num:
        prompt, answer = ask(rng)
        found.setdefault(prompt, answer)
    return [{"prompt": prompt, "reference": str(answer)} for prompt, answer in found.items()]
