"""What to learn next: when a skill has enough new signal, and which of its tasks to practise."""

import hashlib
import random
from collections.abc import Sequence

from pydantic import ConfigDict, Field

from learner.advantages import Baseline
from learner.trainer_config import TrainerConfig
from memory.types import Skill, SkillPolicy, TaskSpec

OF_TIME_AND_ROOM = (
    "enabled",
    "check_interval_s",
    "min_new_signal",
    "min_train_tasks",
    "min_heldout_tasks",
    "step_timeout_s",
    "max_memory_mib",
)
"""Settings that may change while a cycle waits to be gone on with."""


class LearnerConfig(TrainerConfig):
    """Settings of ``[learner]``: the trainer's, and when, on what and for how long to learn."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    enabled: bool = True
    """Whether cycles start by themselves; ``denizen learn`` works either way."""
    check_interval_s: float = Field(default=20.0, gt=0.0)
    """Seconds between looks at whether a skill has enough new signal."""
    min_new_signal: int = 16
    """Graded live episodes and new tasks a skill needs since its last cycle; two steps' worth of
    tasks.
    """
    min_train_tasks: int = 8
    """Different training tasks a skill needs; below that practice repeats itself."""
    min_heldout_tasks: int = Field(default=8, ge=1)
    """Held-out tasks a skill needs; on fewer the gate (``promotion.min_tasks``) says nothing."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts of one task that are compared with each other; 8 × 8 fits two cores."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks in one optimizer step."""
    steps_per_cycle: int = Field(default=12, ge=1)
    """Optimizer steps in one cycle."""
    temperature: float = Field(default=1.0, gt=0.0, le=2.0)
    """Sampling temperature of practice; at 1 the recorded log-probabilities are those of the
    sampler.
    """
    baseline: Baseline = "mean"
    """What a rollout's reward is compared with: the mean of its group (Dr. GRPO), or of the others
    in it (``leave_one_out``).
    """
    normalize_std: bool = False
    """Whether a group's advantages are divided by the standard deviation of its rewards, as in
    GRPO; it favours tasks that are nearly always or nearly never solved.
    """
    max_heldout_tasks: int = Field(default=48, ge=2)
    """Held-out tasks a gate tries, spread evenly over the skills."""
    step_timeout_s: float = Field(default=900.0, gt=0.0)
    """Seconds after which a training step counts as hung."""
    max_memory_mib: int | None = Field(default=None, ge=1)
    """MiB that the training process may allocate; beyond that the cycle fails and says so. None
    does not bound it; where the machine runs short the kernel still ends it before anything else.
    """

    @property
    def sha256(self) -> str:
        """Of the settings that decide what a cycle's steps do, not when or how fast."""
        shaping = self.model_dump_json(exclude=set(OF_TIME_AND_ROOM))
        return hashlib.sha256(shaping.encode()).hexdigest()


def missing(skill: Skill, config: LearnerConfig) -> list[str]:
    """Say what a skill lacks before a cycle may start by itself; empty when it is ready.

    Example:
        ``["12 of 16 newly graded episodes or tasks"]``
    """
    num_new, need = skill.num_new_signal, config.min_new_signal
    fresh = [f"{num_new} of {need} newly graded episodes or tasks"] if num_new < need else []
    return fresh + missing_work(skill, config)


def missing_work(skill: Skill, config: LearnerConfig) -> list[str]:
    """Say what a skill lacks to take part in a cycle that another skill has started."""
    if skill.policy is not SkillPolicy.LEARN:
        return [f"the skill is {skill.policy}"]
    needs = (
        (skill.num_train_tasks, config.min_train_tasks, "training tasks"),
        (skill.num_heldout_tasks, config.min_heldout_tasks, "held-out tasks"),
    )
    return [f"{have} of {need} {what}" for have, need, what in needs if have < need]


def choose(tasks: Sequence[TaskSpec], num: int, rng: random.Random) -> list[TaskSpec]:
    """Choose tasks for one step, taking turns between skills.

    Args:
        tasks: the candidates; within a skill the earlier ones are preferred (the store lists the
            least practised first).
        num: how many to choose; fewer when there are fewer.
        rng: decides which skill begins.
    """
    by_skill: dict[int | None, list[TaskSpec]] = {}
    for task in tasks:
        by_skill.setdefault(task.skill_id, []).append(task)
    queues = list(by_skill.values())
    rng.shuffle(queues)
    chosen: list[TaskSpec] = []
    depth = 0
    while len(chosen) < num and any(depth < len(queue) for queue in queues):
        chosen += [queue[depth] for queue in queues if depth < len(queue)]
        depth += 1
    return chosen[:num]
