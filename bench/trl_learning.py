"""TRL's GRPOTrainer learning the bench's tasks, in TRL's own environment, one turn at a time.

``TrlRun`` starts this module as a program there. It loads the model, says so, and makes as many
steps as each line on its input asks for; after them it writes the adapter down, says how long they
took, and waits, so that whoever takes turns with it has the machine for itself. Rewards are those
of Denizen's own grader. Sampling, training and everything else is TRL's.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from bench import trl_peer
from graders.number_check import score_numeric
from graders.types import Answer

ROOT = Path(__file__).parents[1]
OWN_DEFAULTS = {"loss_type": "dapo", "scale_rewards": "group", "epsilon": 0.2, "beta": 0.0}
"""TRL's defaults of its objective, said aloud because they are not Denizen's."""


class TrlRun:
    """``with TrlRun(task, folder) as run: turn = run.advance(5)``.

    Args:
        task: ``{"model", "tasks": [{"messages", "reference"}] in their order, "config": fields of
            LearnerConfig, "max_tokens", "num_steps", "seed"}``.
        folder: exists; takes the adapters and the log.
    """

    def __init__(self, task: dict[str, Any], folder: Path) -> None:
        self._task = task | {"folder": str(folder)}
        self._folder = folder

    def __enter__(self) -> Self:
        file = self._folder / "trl.json"
        file.write_text(json.dumps(self._task), encoding="utf-8")
        with (self._folder / "trl.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(trl_peer.install()), "-m", "bench.trl_learning", str(file)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.about = self._read()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def advance(self, num_steps: int) -> dict[str, Any]:
        """Let it make steps; returns ``{"step", "seconds", "adapter", "rewards"}``.

        ``seconds`` are of all steps so far, ``rewards`` the means of these steps.

        Raises:
            RuntimeError: it failed; its log says why.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num_steps}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            log = (self._folder / "trl.log").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"TRL ended; its last words:\n{log[-2000:]}")
        found: dict[str, Any] = json.loads(line)
        return found


def main() -> None:
    """Learn as the file says that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.trl_learning", description=__doc__)
    parser.add_argument("task", type=Path)
    task = json.loads(parser.parse_args().task.read_text(encoding="utf-8"))
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed
    _learn(task, replies)


def _learn(task: dict[str, Any], replies: TextIO) -> None:
    import trl  # type: ignore[import-not-found]
    from datasets import Dataset  # type: ignore[import-not-found]
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback

    config, rewards = task["config"], list[float]()

    def reward(
        prompts: Sequence[Any], completions: Sequence[Any], reference: Sequence[str], **_: Any
    ) -> list[float]:
        found = [
            _score(messages, completion[0], right)
            for messages, completion, right in zip(prompts, completions, reference, strict=True)
        ]
        rewards.append(sum(found) / len(found))
        return found

    class Turns(TrainerCallback):
        """Waits between turns; the clock stands still meanwhile."""

        def __init__(self) -> None:
            self.seconds = 0.0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self._wait()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step < self.until:
                return
            self.seconds += time.perf_counter() - self.began
            adapter = Path(task["folder"]) / f"trl-{state.global_step:02d}"
            trainer.model.save_pretrained(adapter)
            turn = {
                "step": state.global_step,
                "seconds": self.seconds,
                "adapter": str(adapter),
                "rewards": rewards[:],
            }
            rewards.clear()
            _say(replies, turn)
            if state.global_step < task["num_steps"]:
                self._wait(state.global_step)

        def _wait(self, step: int = 0) -> None:
            line = sys.stdin.readline()
            if not line:
                sys.exit("nobody waits for the next turn")
            self.until = step + int(line)
            self.began = time.perf_counter()

    trainer = trl.GRPOTrainer(
        model=task["model"],
        processing_class=AutoTokenizer.from_pretrained(task["model"]),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(
            [{"prompt": one["messages"], "reference": one["reference"]} for one in task["tasks"]]
        ),
        peft_config=LoraConfig(
            r=config["rank"],
            lora_alpha=config["alpha"],
            target_modules=config["target_modules"],
            task_type="CAUSAL_LM",
        ),
        callbacks=[Turns()],
        args=trl.GRPOConfig(
            output_dir=task["folder"],
            model_init_kwargs={"dtype": "bfloat16"},
            per_device_train_batch_size=config["group_size"],
            gradient_accumulation_steps=config["tasks_per_step"],
            num_generations=config["group_size"],
            max_completion_length=task["max_tokens"],
            temperature=config["temperature"],
            max_steps=task["num_steps"],
            shuffle_dataset=False,
            learning_rate=config["learning_rate"],
            lr_scheduler_type="constant",
            max_grad_norm=config["max_grad_norm"],
            seed=task["seed"],
            disable_tqdm=True,
            **trl_peer.QUIET,
            **OWN_DEFAULTS,
        ),
    )
    given = trainer.processing_class.apply_chat_template(
        task["tasks"][0]["messages"], add_generation_prompt=True, return_dict=True
    )
    _say(replies, {"trl": trl.__version__, "first_prompt": list(given["input_ids"])})
    trainer.train()


def _score(messages: Sequence[Any], completion: Any, reference: str) -> float:
    answer = Answer(messages=messages, message=completion, reference=reference)
    return score_numeric(answer).value


def _say(replies: TextIO, found: dict[str, Any]) -> None:
    replies.write(json.dumps(found) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
