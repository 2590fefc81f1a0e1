"""The judges of one service: what judges answers, what finds out its worth, and who may teach.

Puts the parts together: ``Judging`` asks the model, ``Pairing`` and ``Prober`` find what it is
measured by, and ``JudgeTrust`` works out what follows. It does not know whose model judges.
"""

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from graders import catalog
from graders.allowance import Allowance
from graders.chat_model import ChatModel
from graders.config import GradersConfig
from graders.judge import JUDGE
from graders.judging import Judging
from graders.pairing import Pairing
from graders.probing import Prober
from graders.ranking import RankingJudge
from graders.rubrics import Rubric, given_rubric
from graders.teacher import Teacher
from graders.trust import JudgeTrust
from graders.types import Grader
from memory.fences import ControlTokens
from memory.judge_queue import JudgeQueue
from memory.rubric_store import RubricStore
from memory.store import Store
from memory.types import Split, TaskSpec


class Judges:
    """The judges of one service.

    Args:
        store: the record.
        config: the settings.
        trust: who may teach.
        model: what judges.
        control_tokens: the literals that the model's tokenizer reads as tokens.
        answer_of: the call whose answer an episode is graded by; None: there is none.
        on_judged: called when outcomes are to be merged again.
        has_to_wait: whether the model is answering somebody, or is not there just now.
        ranks: whether groups are ranked, so that planted answers are put before rankings, too.
    """

    def __init__(
        self,
        *,
        store: Store,
        config: GradersConfig,
        trust: JudgeTrust,
        model: ChatModel,
        control_tokens: ControlTokens,
        answer_of: Callable[[str], str | None],
        on_judged: Callable[[], None],
        has_to_wait: Callable[[], bool],
        ranks: bool = False,
    ) -> None:
        self.is_on = config.judge != "off"
        self._store = store
        self._config = config
        self._trust = trust
        self._on_judged = on_judged
        rubrics = RubricStore(store.database)

        def rubric_of(skill_id: int | None) -> Rubric | None:
            return None if skill_id is None else given_rubric(rubrics.newest(skill_id))

        self._rubric_of = rubric_of
        self._control_tokens = control_tokens
        self._teacher = Teacher(
            model,
            deadline_s=config.deadline_s,
            max_parallel=config.max_parallel,
            allowance=Allowance(
                max_calls=config.max_calls_per_hour, max_tokens=config.max_tokens_per_hour
            ),
        )
        self._judging = Judging(
            store=store,
            teacher=self._teacher,
            config=config,
            rubric_of=rubric_of,
            control_tokens=control_tokens,
            on_judged=on_judged,
            has_to_wait=has_to_wait,
        )
        # Judges are measured as they judge what nobody knows the answer to: without a reference.
        unaided = partial(self._judging.judge_of, has_reference=False)
        self._unaided: Callable[[int | None], Grader] = unaided
        self._prober = Prober(
            evidence=store.judge_evidence,
            tasks_of=self._tasks_of,
            judges_of=lambda skill_id: [unaided(skill_id)],
            rankers_of=lambda skill_id: [self.ranking_of(skill_id)] if ranks else [],
        )
        self._pairing = Pairing(
            evidence=store.judge_evidence,
            queue=JudgeQueue(store.database),
            trust=trust,
            judge_of=unaided,
            skills_in_use=self._skills_in_use,
            answer_of=answer_of,
            config=config,
        )

    async def run(self) -> None:
        """Judge what waits, and what will; until cancelled."""
        if self.is_on:
            await self._judging.run()
        else:
            await asyncio.Event().wait()

    def wake(self) -> None:
        """Say that an answer may wait for a judge."""
        self._judging.wake()

    def forget(self, episode_ids: Collection[str]) -> None:
        """Forget what episodes said that are erased."""
        self._judging.forget(episode_ids)

    def report(self) -> dict[str, Any]:
        """Return progress and cost for people who watch."""
        return {"mode": self._config.judge} | self._judging.report()

    def grader_of(self, task: TaskSpec) -> Grader:
        """Return who grades a task that is practised; a judge as it is measured, unaided.

        Raises:
            InvalidRequestError: There is no such grader, or no judge.
        """
        if task.grader == JUDGE and self.is_on:
            return self._unaided(task.skill_id)
        return catalog.find_grader(task.grader)

    def ranking_of(self, skill_id: int) -> RankingJudge:
        """Return who orders a group of a skill's answers, by the rubric of its scores.

        Raises:
            ValueError: ``graders.votes`` is 1; a ranking needs either order.
        """
        return RankingJudge(
            self._teacher,
            rubric=self._rubric_of(skill_id),
            config=self._config,
            control_tokens=self._control_tokens,
        )

    def why_not_now(self) -> str | None:
        """Say why the model may not be asked just now: it rests, or its allowance is spent."""
        pause = self._teacher.pause()
        return None if pause is None else pause[1].value

    async def measure(self) -> None:
        """Work out who may teach, have outcomes follow, and ask where too little is known."""
        await self._trust.run(self._on_judged)
        if self.is_on and await self._pairing.run():
            self._judging.wake()

    async def probe(self) -> None:
        """Ask judges about planted answers, in the skills where they have graded something."""
        if self.is_on:
            await self._prober.run(sorted({one.skill_id for one in self._trust.standings()}))

    def _tasks_of(self, skill_id: int) -> list[TaskSpec]:
        tasks = self._store.tasks
        return [task for split in Split for task in tasks.of_skills([skill_id], split)]

    def _skills_in_use(self) -> set[int]:
        """Return the skills where a judge is asked."""
        if self._config.judge == "all":
            return {skill.id for skill in self._store.skills.all()}
        asked = {one.skill_id for one in self._trust.standings()}
        return asked | self._store.judge_evidence.skills_with_tasks_for(JUDGE)
