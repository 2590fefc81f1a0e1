"""Two skills one after the other: what the second costs the first, with rehearsal and without.

Letters are learned by practice; from there products, twice: on products alone, and with a few of
the letters' training tasks practised in every step, as a learning cycle rehearses. Held-out letters
are scored before and after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.learning_curves import Checkpoint, Curve, Point
from bench.learning_mix import LETTERS, PRODUCTS, Mix, mix_of
from bench.learning_run import LearningRun
from bench.workbench import BASE_WEIGHTS, Keep, Weights, Workbench, say
from learner.curriculum import LearnerConfig
from learner.rehearsal import num_per_step
from memory.types import TaskSpec

NUM_HELDOUT = 200
TURN = 4  # steps between points of a curve


async def measure(
    bench: Workbench, *, seed: int, num_steps: int, config: LearnerConfig, keep: Keep
) -> dict[str, Any]:
    """Learn letters, then products with rehearsal and without.

    Args:
        bench: engine and training.
        seed: order of the tasks, and the initial adapter.
        num_steps: for each skill.
        config: of practice; ``rehearsal_share`` says how much is rehearsed.
        keep: told after every curve.
    """
    config = config.model_copy(update={"seed": seed})
    own, rehearsed = config.tasks_per_step, num_per_step(config)
    num_train = num_steps * own
    letters, products = (
        mix_of([kind], num_train=num_train, num_heldout=NUM_HELDOUT // 2, seed=seed)
        for kind in (LETTERS, PRODUCTS)
    )
    heldout = [*letters.heldout, *products.heldout]
    lesson = _Lesson(bench=bench, heldout=heldout, num_steps=num_steps)
    first, weights = await lesson.learned(letters.train, config, BASE_WEIGHTS)
    found: dict[str, Any] = {
        "settings": {
            "tasks_a_step": own,
            "rehearsed_tasks_a_step": rehearsed,
            "group_size": config.group_size,
            "learning_rate": config.learning_rate,
            "steps_of_each": num_steps,
            "heldout": {"letters": len(letters.heldout), "products": len(products.heldout)},
            "seed": seed,
        },
        "letters_first": first.to_json(),
    }
    keep(found)
    for name, num in (("without_rehearsal", 0), ("with_rehearsal", rehearsed)):
        tasks = _mixed(products, letters, own=own, rehearsed=num)
        sizes = config.model_copy(update={"tasks_per_step": own + num})
        curve, _ = await lesson.learned(tasks, sizes, weights, before=first.last)
        found[name] = {
            "loss_on_letters": round(_score(first, "letters") - _score(curve, "letters"), 4),
            "gain_on_products": round(_score(curve, "products") - _score(first, "products"), 4),
            "curve": curve.to_json(),
        }
        keep(found)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Lesson:
    bench: Workbench
    heldout: list[TaskSpec]
    num_steps: int

    async def learned(
        self,
        tasks: Sequence[TaskSpec],
        config: LearnerConfig,
        start: Weights,
        *,
        before: Point | None = None,
    ) -> tuple[Curve, Weights]:
        """Learn tasks from given weights on; return the curve and the weights."""
        if before is None:
            scores = await self.bench.score(self.heldout, start)
            none = Checkpoint(step=0, num_rollouts=0, seconds=0.0, weights=start)
            before = Point(checkpoint=none, scores=scores)
        curve = Curve([before])
        async with LearningRun(self.bench, tasks, config, start=start) as run:
            for done in range(0, self.num_steps, TURN):
                reached = await run.advance(min(TURN, self.num_steps - done))
                scores = await self.bench.score(self.heldout, run.weights)
                curve.points.append(Point(checkpoint=reached, scores=scores))
                say(f"  step {reached.step}: {scores.by_kind}")
            return curve, run.weights


def _mixed(new: Mix, known: Mix, *, own: int, rehearsed: int) -> list[TaskSpec]:
    """Put some tasks of the known skill behind each step's own."""
    num_steps = len(new.train) // own
    return [
        task
        for step in range(num_steps)
        for task in (
            *new.train[step * own : (step + 1) * own],
            *known.train[step * rehearsed : (step + 1) * rehearsed],
        )
    ]


def _score(curve: Curve, kind: str) -> float:
    return curve.last.scores.by_kind[kind]
