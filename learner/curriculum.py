"""What to learn next: when a skill has enough new signal, and which of its tasks to practise."""

import hashlib
import random
from collections.abc import Mapping, Sequence

from pydantic import ConfigDict, Field

from learner.advantages import MIN_SPREAD, Baseline
from learner.trainer_config import TrainerConfig
from memory.task_store import Tries
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
    """Rollouts of one task that are compared with each other; 8 as in TRL."""
    tasks_per_step: int = Field(default=8, ge=1)
    """Tasks in one optimizer step; 8 × 8 rollouts of the packaged model make a step of some 10 s on
    two cores (``bench/whole_step.py``), so a cycle some two minutes."""
    steps_per_cycle: int = Field(default=12, ge=1)
    """Optimizer steps in one cycle."""
    overlap: bool = False
    """Whether the next step's rollouts are sampled while this step is trained, by the weights that
    were trained before it: one step old, for which the importance weights correct. Off, as where
    engine and trainer share two cores neither has time to spare. What it is worth where they do not
    (an engine elsewhere, a GPU) was not measured: ``python -m bench.whole_step --overlap``."""
    temperature: float = Field(default=1.0, gt=0.0, le=2.0)
    """Sampling temperature of practice; at 1 the recorded log-probabilities are those of the
    sampler.
    """
    baseline: Baseline = "mean"
    """What a rollout's reward is compared with: the mean of its group (Dr. GRPO), or of the others
    in it (``leave_one_out``).
    """
    min_live_episodes: int = Field(default=16, ge=2)
    """Graded episodes of work that cannot be replayed, with different outcomes, that a skill needs
    to learn from them; as many as ``min_new_signal``."""
    live_episodes_per_step: int = Field(default=16, ge=1)
    """Recorded episodes in one optimizer step; a quarter of the rollouts that 8 × 8 practice has,
    as they are of many turns."""
    live_epochs: int = Field(default=3, ge=1)
    """How often a cycle trains on each recorded episode. As PPO does with its rollouts (Atari:
    3; arXiv:1707.06347, table 5); importance weights and the trust region bound what it adds."""
    live_heldout_share: float = Field(default=0.25, gt=0.0, lt=1.0)
    """Share of recorded episodes, by the hash of their session, that is never trained on; as
    ``tasks.heldout_share``."""
    max_staleness: int = Field(default=4, ge=0)
    """Versions that may lie between the one that sampled an episode and the one that learns from
    it. Asynchronous training loses little up to about 4 policy versions (AReaL, arXiv:2505.24298);
    a version here is a whole cycle, and what has moved too far meets ``max_sequence_gap``."""
    max_row_tokens: int = Field(default=4096, ge=1)
    """Tokens of a recorded conversation above which it is not trained on; a row is computed in one
    piece and needs memory for all of it."""
    next_turns_per_step: int = Field(default=4, ge=0)
    """Recorded prefixes in one optimizer step at which the next turn is sampled again, and the
    alternatives are ranked together by the judge of ``[teacher]``, where that judge is trusted; 0
    switches it off. The judge reads the prefix and what came after. Four take 12 of its replies a
    step at three votes, and a cycle of 12 steps a seventh of ``graders.max_calls_per_hour``."""
    next_turn_group_size: int = Field(default=6, ge=2, le=32)
    """Alternatives at one prefix. For groups that a model ranks 4 to 8 are advised: more cost more
    and confuse the judge (documentation of RULER, art.openpipe.ai)."""
    rehearsal_share: float = Field(default=0.25, ge=0.0, le=1.0)
    """Tasks of other skills that are practised beside a step's own, per own task, so that what is
    learned costs them little; 0 switches it off. A quarter is what continual pre-training replays
    under a strong shift, 5 % under a weak one (arXiv:2403.08763)."""
    revisit_share: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of a step's tasks that is chosen whatever their past rewards say, as these age; 0.1 is
    the share of stale levels in Prioritized Level Replay (arXiv:2010.03934)."""
    normalize_std: bool = False
    """Whether a group's advantages are divided by the standard deviation of its rewards, as in
    GRPO; it favours tasks that are nearly always or nearly never solved.
    """
    max_heldout_tasks: int = Field(default=48, ge=2)
    """Held-out tasks a gate tries, spread evenly over the skills. Where gains of single tasks have
    a standard deviation of 0.5, 48 tell their mean to ±0.14 (1.96 × 0.5 / √48)."""
    step_timeout_s: float = Field(default=900.0, gt=0.0)
    """Seconds after which a training step counts as hung; the first includes loading the model. The
    packaged model takes 4 to 11 s of training on two cores (``bench/trainer.py``)."""
    max_memory_mib: int | None = Field(default=None, ge=1)
    """MiB that the training process may allocate; beyond that the cycle fails and says so. Unset it
    is not bounded; where the machine runs short the kernel still ends it before anything else.
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
    """Say what a skill lacks to take part in a cycle that another skill has started.

    It needs tasks that can be tried again, or graded episodes of work that cannot. Where it has
    something of both, what is missing of either is said.

    Example:
        ``["9 of 16 graded episodes with different outcomes"]``
    """
    if skill.policy is not SkillPolicy.LEARN:
        return [f"the skill is {skill.policy}"]
    tasks, live = missing_tasks(skill, config), missing_live(skill, config)
    if not tasks or not live:
        return []
    if not skill.num_live_graded:
        return tasks
    if not skill.num_train_tasks and not skill.num_heldout_tasks:
        return live
    return [f"{', '.join(tasks)}; or {live[0]}"]


def missing_tasks(skill: Skill, config: LearnerConfig) -> list[str]:
    """Say what a skill lacks to be practised."""
    needs = (
        (skill.num_train_tasks, config.min_train_tasks, "training tasks"),
        (skill.num_heldout_tasks, config.min_heldout_tasks, "held-out tasks"),
    )
    return [f"{have} of {need} {what}" for have, need, what in needs if have < need]


def missing_live(skill: Skill, config: LearnerConfig) -> list[str]:
    """Say what a skill lacks to learn from episodes that cannot be replayed."""
    have, need = skill.num_live_graded, config.min_live_episodes
    if have < need:
        return [f"{have} of {need} graded episodes with different outcomes"]
    if not skill.has_live_contrast:
        return [f"graded episodes with different outcomes: all {have} have the same"]
    return []


def taking_part(
    skills: Sequence[Skill], ready: Sequence[Skill], config: LearnerConfig
) -> list[int]:
    """Return the ids of the skills of a cycle that some are ready for.

    Every skill that can be practised takes part where one of them is ready: one adapter serves them
    all, so what one gains must not cost another, and the gate has to see both. Skills that only
    have episodes of work that cannot be replayed get a cycle of their own, after these: a person
    decides on what it makes.
    """
    if any(not missing_tasks(skill, config) for skill in ready):
        willing = [skill for skill in skills if skill.policy is SkillPolicy.LEARN]
        return [skill.id for skill in willing if not missing_tasks(skill, config)]
    return [skill.id for skill in ready]


def value_of(tries: Tries | None) -> float:
    """Return how much a group of tries of a task is likely to teach, from 0 to 1/4.

    ``E[p (1 - p)]`` under the Beta posterior of its success probability p, which begins uniform and
    counts each try as its reward of a success: ``a b / ((a + b)(a + b + 1))`` with
    ``a = 1 + n mean``, ``b = 1 + n (1 - mean)``. Tasks that succeed half the time come first
    (ProCuRL, arXiv:2304.12877), and one that was never tried, at 1/6, before one that hardly ever
    succeeds or fails. Tries that all had the same reward teach nothing: 0.
    """
    if tries is None:
        return 1 / 6
    if tries.num > 1 and tries.spread <= MIN_SPREAD:
        return 0.0
    a, b = 1 + tries.num * tries.mean, 1 + tries.num * (1 - tries.mean)
    return a * b / ((a + b) * (a + b + 1))


def choose_for_step(
    tasks: Sequence[TaskSpec],
    num: int,
    rng: random.Random,
    *,
    values: Mapping[str, float],
    num_tried: Mapping[str, int],
    revisit_share: float,
) -> list[TaskSpec]:
    """Choose a step's tasks: those that teach most, and now and then any other.

    Args:
        tasks: the candidates.
        num: how many to choose; fewer when there are fewer.
        rng: decides which skill begins, and what is visited again.
        values: ``value_of`` each task, by id. A task's value is divided by one more than its tries
            in this cycle, so that the others come, too; one without value comes last.
        num_tried: how often each was tried in this cycle.
        revisit_share: chance of each place to be given regardless of value.
    """
    num_revisits = sum(rng.random() < revisit_share for _ in range(num))

    def rank(task: TaskSpec) -> tuple[float, int]:
        tried = num_tried.get(task.id, 0)
        return -values[task.id] / (1 + tried), tried

    chosen = choose(sorted(tasks, key=rank), num - num_revisits, rng)
    known = {task.id for task in chosen}
    rest = [task for task in tasks if task.id not in known]
    rng.shuffle(rest)
    rest.sort(key=lambda task: num_tried.get(task.id, 0))
    return chosen + choose(rest, num_revisits, rng)


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
