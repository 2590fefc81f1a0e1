"""Rehearsal: a few tasks of skills that a cycle is not about, practised in each of its steps.

Their groups join the step's batch, so that learning one thing does not cost another. A skill that
is still mastered has groups without contrast, which add nothing; as soon as it slips its tries
differ, and the step pulls it back (experience replay against forgetting, as in CLEAR,
arXiv:1811.11682, with fresh tries in place of stored ones). It does not know what a cycle is about
beyond its skills.
"""

import dataclasses
import math
import random
from collections.abc import Sequence

from learner import curriculum
from learner.curriculum import LearnerConfig
from learner.sources import Gathered, RowSource, StepPlan
from memory.store import Store
from memory.types import Cycle, SkillPolicy, Split, TaskRole, TaskSpec

PART = "rehearsal"


def num_per_step(config: LearnerConfig) -> int:
    """Return how many tasks a step rehearses; at least one unless it is switched off."""
    return math.ceil(config.rehearsal_share * config.tasks_per_step)


def choose_rehearsed(store: Store, cycle: Cycle, config: LearnerConfig) -> list[TaskSpec]:
    """Choose what a cycle rehearses: training tasks of other skills, the skills taking turns.

    Args:
        store: where tasks are.
        cycle: which skills it is about.
        config: how much is rehearsed.

    Returns:
        As many as its steps need, or all there are. Skills that may not be learned are left out.
    """
    others = [
        skill.id
        for skill in store.skills.all()
        if skill.id not in cycle.skill_ids and skill.policy is SkillPolicy.LEARN
    ]
    tasks = store.tasks.of_skills(others, Split.TRAIN)
    rng = random.Random(f"{cycle.id}/{PART}")
    rng.shuffle(tasks)
    return curriculum.choose(tasks, num_per_step(config) * config.steps_per_cycle, rng)


class RehearsalRows:
    """Rows of rehearsed tasks; a source beside a step's own.

    Args:
        practice: makes rows of tasks that are tried.
        store: knows what a cycle rehearses.
        config: how much.
    """

    def __init__(self, practice: RowSource, store: Store, config: LearnerConfig) -> None:
        self._practice = practice
        self._store = store
        self._config = config

    async def gather(self, plan: StepPlan) -> Gathered:
        """Try the tasks whose turn it is."""
        chosen = self._store.cycles.tasks(plan.cycle_id).get(TaskRole.REHEARSAL, [])
        tasks = _turn(chosen, plan.index, num_per_step(self._config))
        found = await self._practice.gather(dataclasses.replace(plan, tasks=tasks, part=PART))
        receipt = {
            "rehearsal_tasks": len(tasks),
            "rehearsal_rows": len(found.batch.rows),
            "rehearsal_reward_mean": found.receipt["reward_mean"],
        }
        return dataclasses.replace(found, receipt=receipt)


def _turn(tasks: Sequence[TaskSpec], index: int, num: int) -> list[TaskSpec]:
    """Return the ``index``-th ``num`` tasks, round and round; none twice at once."""
    num = min(num, len(tasks))
    return [tasks[place % len(tasks)] for place in range((index - 1) * num, index * num)]
