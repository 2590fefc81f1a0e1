"""Denizen's practice and TRL's GRPOTrainer on the same tasks, by turns, scored by one engine.

TRL makes some steps, then Denizen until it has used half of TRL's seconds, and again: both meet the
same machine, and neither runs beside the other. Model, LoRA, learning rate, tasks and their order,
rollouts, temperature, token limit and grader are one; each has the objective of its own defaults.
"""

import asyncio
from pathlib import Path
from typing import Any

from bench.learning_curves import Checkpoint, Curve, Point, race
from bench.learning_mix import MAX_TOKENS, MIX, Mix, mix_of
from bench.learning_run import LearningRun
from bench.trl_learning import OWN_DEFAULTS, TrlRun
from bench.workbench import BASE_WEIGHTS, Keep, Weights, Workbench, say
from learner.curriculum import LearnerConfig
from memory.types import TaskSpec

NUM_HELDOUT = 120
TURN = 5  # steps


async def measure(
    bench: Workbench, *, seed: int, num_steps: int, config: LearnerConfig, keep: Keep
) -> dict[str, Any]:
    """Let both learn, then score what they had after every turn.

    Args:
        bench: the engine, and Denizen's side.
        seed: order of the tasks, and initial adapters.
        num_steps: TRL's; Denizen makes as many as it can in half of the time.
        config: of both.
        keep: told after every turn and score.
    """
    config = config.model_copy(update={"seed": seed})
    # Denizen may need more tasks than TRL in half the time; there are enough for twice the speed.
    num_tasks = 2 * num_steps * config.tasks_per_step
    mix = mix_of(MIX, num_train=num_tasks, num_heldout=NUM_HELDOUT, seed=seed)
    task = {
        "model": str(bench.model.resolve()),
        "tasks": [_wire(one) for one in mix.train],
        "config": config.model_dump(mode="json"),
        "max_tokens": MAX_TOKENS,
        "num_steps": num_steps,
        "seed": seed,
    }
    folder = bench.folder / "trl"
    folder.mkdir()
    with TrlRun(task, folder) as trl:
        await _check_prompt(bench, mix.train[0], trl.about["first_prompt"])
        async with LearningRun(bench, mix.train, config) as own:
            report = await _by_turns(bench, own, trl, num_steps, keep)
    report = {"settings": _settings(config, mix, trl.about), **report}
    curves = await _scored(bench, mix, report.pop("checkpoints"), keep)
    return report | {
        "denizen_against_trl": race(curves["denizen"], curves["trl"]),
        **{name: curve.to_json() for name, curve in curves.items()},
    }


async def _check_prompt(bench: Workbench, task: TaskSpec, token_ids: list[int]) -> None:
    """Make sure that both ask the same, token for token.

    Raises:
        RuntimeError: they do not.
    """
    [[trial]] = await bench.rollouts([task], BASE_WEIGHTS, num_samples=1, temperature=1.0)
    if list(trial.call.prompt_token_ids or ()) != token_ids:
        raise RuntimeError(f"TRL asks {token_ids}, the engine {trial.call.prompt_token_ids}")


async def _by_turns(
    bench: Workbench, own: LearningRun, trl: TrlRun, num_steps: int, keep: Keep
) -> dict[str, Any]:
    """Return the checkpoints of both, and what each step was worth while it was sampled."""
    start = Checkpoint(step=0, num_rollouts=0, seconds=0.0, weights=BASE_WEIGHTS)
    checkpoints = {"denizen": [start], "trl": [start]}
    rewards, number = list[float](), bench.new_run()
    for done in range(0, num_steps, TURN):
        turn = await asyncio.to_thread(trl.advance, min(TURN, num_steps - done))
        rewards += turn["rewards"]
        checkpoints["trl"].append(
            Checkpoint(
                step=turn["step"],
                num_rollouts=turn["step"] * own.rollouts_a_step,
                seconds=turn["seconds"],
                weights=Weights(
                    name=f"denizen-{number:06d}-step-{turn['step']:02d}", path=Path(turn["adapter"])
                ),
            )
        )
        while own.checkpoint.seconds < turn["seconds"] / 2:
            checkpoints["denizen"].append(await own.advance(TURN))
            say(f"  Denizen: step {own.checkpoint.step}, {own.checkpoint.seconds:.0f} s")
        left_s = turn["seconds"] / turn["step"] * (num_steps - turn["step"]) * 1.5
        say(f"  TRL: step {turn['step']}, {turn['seconds']:.0f} s; {left_s / 60:.0f} min left")
        found = {"denizen_steps": own.receipts, "trl_rewards": rewards}
        keep(found)
    return found | {"checkpoints": checkpoints}


async def _scored(
    bench: Workbench, mix: Mix, checkpoints: dict[str, list[Checkpoint]], keep: Keep
) -> dict[str, Curve]:
    curves = {"denizen": Curve(), "trl": Curve()}
    base = await bench.score(mix.heldout, BASE_WEIGHTS)
    for name, curve in curves.items():
        for one in checkpoints[name]:
            scores = base if one.step == 0 else await bench.score(mix.heldout, one.weights)
            curve.points.append(Point(checkpoint=one, scores=scores))
            say(f"  {name}, step {one.step}: {scores.mean:.3f}")
        keep({name: curve.to_json() for name, curve in curves.items()})
    return curves


def _wire(task: TaskSpec) -> dict[str, Any]:
    return {"messages": list(task.messages), "reference": task.reference}


def _settings(config: LearnerConfig, mix: Mix, about: dict[str, Any]) -> dict[str, Any]:
    names = (
        *("rank", "alpha", "target_modules", "learning_rate", "max_grad_norm", "dtype", "seed"),
        *("group_size", "tasks_per_step", "temperature"),
    )
    shared = config.model_dump(mode="json", include=set(names))
    return {
        "of_both": {
            **shared,
            "max_tokens": MAX_TOKENS,
            "grader": mix.heldout[0].grader,
            "schedule": "constant",
            "weight_decay": 0.0,
            "heldout_tasks": len(mix.heldout),
        },
        "denizen": {
            "objective": config.objective,
            "is_cap": config.is_cap,
            "baseline": config.baseline,
            "normalize_std": config.normalize_std,
            "sampling": "vLLM",
        },
        "trl": {**OWN_DEFAULTS, "version": about["trl"], "sampling": "transformers"},
    }
