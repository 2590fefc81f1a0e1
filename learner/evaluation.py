"""Two versions on the same held-out tasks, whenever somebody wants to know; changes nothing.

The same measurement as a cycle's gate, without the cycle.
"""

import random
from collections.abc import Sequence

from learner import curriculum
from learner.gate import GateConfig, GateReport, compare
from learner.rollouts import Practice
from memory.errors import InvalidRequestError
from memory.store import Store
from memory.types import Split

MAX_TASKS = 200  # a minute or two for both versions on two cores


class Evaluation:
    """Compares versions on held-out work."""

    def __init__(self, *, store: Store, practice: Practice, gate: GateConfig) -> None:
        self._store = store
        self._practice = practice
        self._gate = gate

    async def compare(
        self, before: str, after: str, skill_ids: Sequence[int] | None = None
    ) -> GateReport:
        """Answer the skills' held-out tasks greedily with both versions and report the difference.

        Args:
            before: a version, or "base".
            after: a version, or "base".
            skill_ids: None takes every skill.

        Raises:
            InvalidRequestError: there are no held-out tasks.
            NotFoundError: a version does not exist.
        """
        if skill_ids is None:
            skill_ids = [skill.id for skill in self._store.skills.all()]
        heldout = self._store.tasks.of_skills(skill_ids, Split.HELDOUT)
        if not heldout:
            raise InvalidRequestError("there are no held-out tasks to compare on")
        tasks = curriculum.choose(heldout, MAX_TASKS, random.Random(0))
        scores_before = await self._practice.score(tasks, adapter=before)
        scores_after = await self._practice.score(tasks, adapter=after)
        skills = {task.id: task.skill_id for task in tasks}
        return compare(scores_before, scores_after, skills, config=self._gate)
