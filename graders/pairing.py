"""Has judges look at answers whose worth is known, so that their agreement can be measured.

A judge is asked about what nobody has graded, so pairs would come only where a person speaks up
later. This picks, in the skills where a judge is in use, answers that a check or a person has
graded already, and lets them wait for the judge behind the others. It does not know how a judge
is asked, or what follows from the pairs.
"""

import asyncio
from collections.abc import Callable, Collection

from graders.judging import JudgeConfig
from graders.trust import JudgeTrust
from graders.types import Grader
from memory.judge_evidence import JudgeEvidence
from memory.judge_queue import JudgeQueue

RUNS_PER_HOUR = 60
CANDIDATES = 200
"""The newest that are looked through for answers; some have none that can be judged."""


class Pairing:
    """Chooses what a judge is measured by.

    Args:
        evidence: what is graded, and by whom.
        queue: where answers wait for a judge.
        trust: how many pairs each judge lacks.
        judge_of: who judges a skill's answers that have no reference.
        skills_in_use: the skills where a judge is in use.
        answer_of: the call whose answer an episode is graded by; None: there is none.
        config: what a judge may cost.
    """

    def __init__(
        self,
        *,
        evidence: JudgeEvidence,
        queue: JudgeQueue,
        trust: JudgeTrust,
        judge_of: Callable[[int], Grader],
        skills_in_use: Callable[[], Collection[int]],
        answer_of: Callable[[str], str | None],
        config: JudgeConfig,
    ) -> None:
        self._evidence = evidence
        self._queue = queue
        self._trust = trust
        self._judge_of = judge_of
        self._skills_in_use = skills_in_use
        self._answer_of = answer_of
        # Half of the calls in an hour; one at a time where that is less than one.
        self._at_once = max(1, config.max_calls_per_hour // (2 * config.votes * RUNS_PER_HOUR))

    async def run(self) -> int:
        """Let as many wait as the budget has room for; return how many."""
        chosen = await asyncio.to_thread(self._choose)
        await self._queue.add(chosen)
        return len(chosen)

    def _choose(self) -> list[tuple[str, str]]:
        """Return episodes with the calls to judge, in turn from the skills that lack most."""
        room = self._at_once - self._queue.num_graded_waiting()
        chosen: list[tuple[str, str]] = []
        lacking = [(self._num_lacking(skill_id), skill_id) for skill_id in self._skills_in_use()]
        for num, skill_id in sorted(lacking, key=lambda one: (-one[0], one[1])):
            chosen += self._of_skill(skill_id, min(num, room - len(chosen)))
        return chosen

    def _num_lacking(self, skill_id: int) -> int:
        judge = self._judge_of(skill_id)
        return self._trust.num_pairs_lacking(judge.name, judge.version, skill_id)

    def _of_skill(self, skill_id: int, num: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        if num <= 0:
            return found
        for episode_id in self._evidence.graded_unjudged(skill_id, CANDIDATES):
            if (call_id := self._answer_of(episode_id)) is not None:
                found.append((episode_id, call_id))
            if len(found) == num:
                break
        return found
