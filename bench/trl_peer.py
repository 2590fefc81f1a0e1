"""TRL's GRPOTrainer, in an environment of its own, as what the trainer is compared with.

The environment is made on demand in the system's folder for temporary files and kept there, with
torch, transformers and peft as the CPU lock pins them. Run as a program in that environment, this
module makes optimizer steps on given rollouts or whole steps on given questions, or works losses
out; it imports nothing of Denizen.
"""

import itertools
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

VERSION = "1.16.0"
LOCK = Path(__file__).parents[1] / "requirements/cpu.lock"
QUIET: dict[str, Any] = {
    "bf16": False,
    "use_cpu": True,
    "gradient_checkpointing": False,
    "disable_dropout": True,
    "report_to": [],
    "save_strategy": "no",
    "logging_strategy": "no",
}
"""Options of GRPOConfig: on this machine's processor, and nothing written."""
PINNED = ("torch", "transformers", "peft", "accelerate")


def install() -> Path:
    """Return the Python of an environment that has TRL; the first time takes minutes."""
    folder = Path(tempfile.gettempdir()) / f"denizen-bench-trl-{VERSION}"
    python = folder / "bin/python"
    complete = folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"trl=={VERSION}", *PINNED]
        subprocess.run([*command, "-c", str(LOCK)], check=True, stdout=sys.stderr)
        complete.touch()
    return python


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Run a task (see ``main``) in TRL's environment and return what it found."""
    command = [str(install()), str(Path(__file__))]
    ended = subprocess.run(
        command, input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Read a task from stdin, print what was found as one line of JSON.

    Steps: ``{"model", "rank", "alpha", "targets", "learning_rate", "prompts": [P][T],
    "completions": [P][G][T], "advantages": [P][G], "num_steps"}``; the first step warms up and is
    not counted. Losses: ``{"model", "losses": {name: options of GRPOConfig}, "trainer_logprobs",
    "sampler_logprobs", "ref_logprobs", "mask": [B][T], "advantages": [B]}``. Whole steps: those of
    steps, and ``"questions": [{"text", "answer"}], "tasks_per_step", "group_size", "max_tokens"``
    in place of the rollouts; of these, too, the first step is not counted.
    """
    task = json.load(sys.stdin)
    if "losses" in task:
        found = _losses(task)
    else:
        found = _whole_steps(task) if "questions" in task else _steps(task)
    print(json.dumps(found))


def closeness(text: str, answer: int) -> float:
    """Return the reward of a text: 1 for the right first number, less the further it is off."""
    number = re.search(r"\d{1,9}", text)
    return 1 / (1 + abs(int(number[0]) - answer)) if number else 0.0


def _losses(task: dict[str, Any]) -> dict[str, Any]:
    """Work TRL's losses of given log-probabilities out, and their gradients."""
    import torch
    from datasets import Dataset  # type: ignore[import-not-found]
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

    def tensor(name: str) -> Any:
        return torch.tensor(task[name], dtype=torch.float64)

    found = {}
    for name, options in task["losses"].items():
        leaf, mask = tensor("trainer_logprobs").requires_grad_(), tensor("mask")
        with tempfile.TemporaryDirectory() as folder:
            trainer = GRPOTrainer(
                model=task["model"],
                processing_class=AutoTokenizer.from_pretrained(task["tokenizer"]),
                reward_funcs=lambda completions, **_: [0.0] * len(completions),
                train_dataset=Dataset.from_list([{"prompt": "given"}]),
                args=GRPOConfig(
                    output_dir=folder,
                    use_cpu=True,
                    bf16=False,
                    report_to=[],
                    per_device_train_batch_size=len(mask),
                    num_generations=len(mask),
                    **options,
                ),
            )
        given = (leaf, torch.zeros_like(leaf), None)
        trainer._get_per_token_logps_and_entropies = lambda *_, given=given, **__: given
        trainer.model.eval()
        ids = torch.ones(mask.shape, dtype=torch.int64)
        loss = trainer._compute_loss(
            trainer.model,
            {
                "prompt_ids": ids[:, :1],
                "prompt_mask": ids[:, :1],
                "completion_ids": ids,
                "completion_mask": mask,
                "advantages": tensor("advantages"),
                "num_items_in_batch": mask.sum(),
                "old_per_token_logps": tensor("sampler_logprobs"),
                "ref_per_token_logps": tensor("ref_logprobs"),
            },
        )
        loss.backward()
        found[name] = {"loss": float(loss), "gradient": leaf.grad.tolist()}
    return found


def _lora(task: dict[str, Any]) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=task["rank"],
        lora_alpha=task["alpha"],
        target_modules=task["targets"],
        task_type="CAUSAL_LM",
    )


def _objective(task: dict[str, Any]) -> dict[str, Any]:
    """Return the trainer's objective and learning rate in GRPOConfig's words."""
    return {
        "learning_rate": task["learning_rate"],
        "lr_scheduler_type": "constant",
        "loss_type": "cispo",
        "epsilon_high": 2.0,
        "beta": 0.0,
    }


def _steps(task: dict[str, Any]) -> dict[str, Any]:
    """Make optimizer steps on the given rollouts with TRL's own training loop."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    prompts, completions = task["prompts"], task["completions"]
    group_size, length = len(completions[0]), len(completions[0][0])

    class Given(GRPOTrainer):  # type: ignore[misc]
        """Takes the rollouts instead of sampling them; all are of one length."""

        def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
            prompt_ids = torch.tensor([p for p in prompts for _ in range(group_size)])
            completion_ids = torch.tensor([c for group in completions for c in group])
            return {
                "prompt_ids": prompt_ids,
                "prompt_mask": torch.ones_like(prompt_ids),
                "completion_ids": completion_ids,
                "completion_mask": torch.ones_like(completion_ids),
                "advantages": torch.tensor([a for group in task["advantages"] for a in group]),
                "num_items_in_batch": torch.tensor(completion_ids.numel()),
            }

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.began, self.seconds = 0.0, list[float]()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.seconds.append(time.perf_counter() - self.began)

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Given(
            model=task["model"],
            processing_class=AutoTokenizer.from_pretrained(task["model"]),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            train_dataset=Dataset.from_list([{"prompt": "given"}] * len(prompts)),
            peft_config=_lora(task),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                model_init_kwargs={"dtype": "bfloat16"},
                per_device_train_batch_size=group_size,
                gradient_accumulation_steps=len(prompts),
                num_generations=group_size,
                max_completion_length=length,
                max_steps=task["num_steps"] + 1,
                **_objective(task),
                **QUIET,
            ),
        )
        before = _peak_mib()
        trainer.train()
    return {
        "seconds": clock.seconds[1:],
        "peak_memory_mib": _peak_mib(),
        "loaded_memory_mib": before,
    }


def _whole_steps(task: dict[str, Any]) -> dict[str, Any]:
    """Let TRL sample, grade and train, all of it TRL's own; a step lasts from end to end."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.ends = list[float]()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    sampling_s, rewards = list[float](), list[float]()

    class Timed(GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.perf_counter()
            found = super()._generate_and_score_completions(inputs)
            sampling_s.append(time.perf_counter() - began)
            return found

    def reward(completions: Any, answer: Any, **_: Any) -> list[float]:
        texts = (completion[0]["content"] for completion in completions)
        found = [closeness(text, right) for text, right in zip(texts, answer, strict=True)]
        rewards.append(sum(found) / len(found))
        return found

    questions, num_tasks, group_size = (
        task[name] for name in ("questions", "tasks_per_step", "group_size")
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        Timed(
            model=task["model"],
            processing_class=AutoTokenizer.from_pretrained(task["model"]),
            reward_funcs=reward,
            train_dataset=Dataset.from_list(
                [
                    {"prompt": [{"role": "user", "content": q["text"]}], "answer": q["answer"]}
                    for q in questions
                ]
            ),
            peft_config=_lora(task),
            callbacks=[clock],
            args=GRPOConfig(
                output_dir=folder,
                model_init_kwargs={"dtype": "bfloat16"},
                per_device_train_batch_size=group_size,
                gradient_accumulation_steps=num_tasks,
                num_generations=group_size,
                max_completion_length=task["max_tokens"],
                max_steps=len(questions) // num_tasks,
                shuffle_dataset=False,
                **_objective(task),
                **QUIET,
            ),
        ).train()
    return {
        "seconds": [end - before for before, end in itertools.pairwise(clock.ends)],
        "sampling_s": sampling_s[1:],
        "rewards": rewards[1:],
        "peak_memory_mib": _peak_mib(),
    }


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
