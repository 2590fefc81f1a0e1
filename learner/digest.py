"""What an episode comes to: its grades, its outcome, the task it makes, and whether to judge it.

It reads and writes nothing, and does not know how grades are reached.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graders.catalog import DEFAULT_GRADER
from graders.feedback import grade_feedback, newest_correction
from graders.judge import JUDGE
from graders.outcome import Trust, merge
from graders.reactions import read_reactions
from graders.types import Answer, Grader
from learner import tasks as task_specs
from learner.tasks import TasksConfig
from learner.trees import main_line
from memory.types import (
    Call,
    CallStatus,
    Episode,
    EpisodeSource,
    Feedback,
    Grade,
    GradeKind,
    Outcome,
    TaskSpec,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the record says of one episode."""

    episode: Episode
    calls: Sequence[Call]
    feedback: Sequence[Feedback]
    grades: Sequence[Grade]  # in force


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """What was worked out of one episode."""

    episode: Episode
    grades: Sequence[Grade]  # of checks and people; a judge's are written by the judge's own part
    outcome: Outcome
    task: TaskSpec | None
    answer_id: str | None  # the call whose answer was graded; None: there is no answer
    is_to_judge: bool  # whether a judge should look at it


class Digestion:
    """Works digests out.

    Args:
        grader_of: the check of a name.
        config: of tasks that are made of episodes.
        wants_judge: whether a judge should look at an episode with these grades.
        trust: which judges' grades count.
    """

    def __init__(
        self,
        *,
        grader_of: Callable[[str], Grader],
        config: TasksConfig,
        wants_judge: Callable[[Episode, list[Grade]], bool],
        trust: Trust,
    ) -> None:
        self._grader_of = grader_of
        self._config = config
        self._wants_judge = wants_judge
        self._trust = trust

    async def work_out(self, told: Told) -> Digest:
        """Grade an episode; what a grader fails at is a grade without a value."""
        episode = told.episode
        task = main_line(told.calls)  # a title's or a sub-agent's answer is not the task's
        answered = answered_of(task)
        if episode.source is EpisodeSource.PRACTICE:  # graded by its task, which knows how
            grades = [grade for grade in told.grades if grade.kind is GradeKind.CHECK]
        else:
            grades = await self._check(episode, answered[-1]) if answered else []
            grades += read_reactions(task)
        grades += grade_feedback(told.feedback)
        deciding = [grade for grade in grades if grade.kind is not GradeKind.REACTION]
        answer_id = answered[-1].id if answered else None
        judged = [
            grade
            for grade in told.grades
            if grade.kind is GradeKind.JUDGE and grade.evidence.get("call_id") in {None, answer_id}
        ]
        return Digest(
            episode=episode,
            grades=grades,
            outcome=merge([*grades, *judged], trust=self._trust, skill_id=episode.skill_id),
            task=self._task_of(episode, answered, told.feedback),
            answer_id=answer_id,
            is_to_judge=bool(answered) and self._wants_judge(episode, deciding),
        )

    async def _check(self, episode: Episode, call: Call) -> list[Grade]:
        """Return the check's grade of the last answer, where there is something to check."""
        if episode.reference is None and episode.grader is None:
            return []
        name = episode.grader or DEFAULT_GRADER
        if name == JUDGE:
            return []
        answer = Answer(
            messages=call.request.get("messages", ()),
            message=call.message or {},
            reference=episode.reference,
        )
        try:
            return [await self._grader_of(name).grade(answer)]
        except Exception as error:  # one bad episode must not stop the others
            log.exception("grading episode %s failed", episode.id)
            reason = f"{type(error).__name__}: {error}"
            kind = GradeKind.CHECK
            return [Grade(kind=kind, grader=name, version="?", value=None, unscored_reason=reason)]

    def _task_of(
        self, episode: Episode, answered: Sequence[Call], feedback: Sequence[Feedback]
    ) -> TaskSpec | None:
        if len(answered) != 1 or not episode.learn:
            return None
        return task_specs.from_episode(
            episode,
            answered[0].request,
            correction=newest_correction(feedback),
            config=self._config,
        )


def answered_of(calls: Sequence[Call]) -> list[Call]:
    """Return the calls of a task that have a whole answer; the last one's is graded."""
    return [call for call in calls if call.status is CallStatus.OK and call.message]
