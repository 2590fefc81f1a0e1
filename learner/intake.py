"""From a finished episode to signal: its skill, grades, outcome, and the task it makes.

Runs behind the answers and catches up after a restart: whatever the store lists as undigested is
taken, oldest first. Grades do not wait for the embedder, which may have to wait for a processor:
one loop grades, another finds skills. While requests are answered both rest most of the time: to
embed a text takes many times as much of a core as an answer's whole way through the gateway. It
does not know how texts are embedded or grades are reached.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
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
from memory import judge_queue
from memory.behind import Behind
from memory.database import Transaction
from memory.errors import DenizenError
from memory.grade_rows import retire_judged, set_grades
from memory.sorter import SkillsMovedError, Sorter
from memory.store import Store
from memory.task_store import replace_derived
from memory.task_texts import asked
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
BATCH = 16
"""Written at once; answers whose records wait behind it come a few milliseconds later."""
REST_FACTOR = 9
"""While requests are answered, how many times as long as it works it rests: a tenth of a core."""
MAX_REST_S = 3.0
"""After work that took long because it waited for a processor."""
REST_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """What was worked out of one episode."""

    episode: Episode
    grades: Sequence[Grade]  # of checks and people; a judge's are written by the judge's own part
    outcome: Outcome
    task: TaskSpec | None
    answer_id: str | None  # the call whose answer was graded; None: there is no answer
    is_to_judge: bool  # whether a judge should look at it


def no_judge(_: Episode, __: list[Grade]) -> bool:
    """Want no judge for any episode."""
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """What the record says of one episode."""

    episode: Episode
    calls: Sequence[Call]
    feedback: Sequence[Feedback]
    grades: Sequence[Grade]  # in force


class Intake:
    """Digests episodes and places imported tasks, in the background."""

    def __init__(
        self,
        *,
        store: Store,
        sorter: Sorter,
        grader_of: Callable[[str], Grader],
        config: TasksConfig,
        is_answering: Callable[[], bool],
        wants_judge: Callable[[Episode, list[Grade]], bool] = no_judge,
        on_digested: Callable[[], None] = lambda: None,
        trust: Trust | None = None,
    ) -> None:
        self._store = store
        self._sorter = sorter
        self._grader_of = grader_of
        self._config = config
        self._is_answering = is_answering
        self._wants_judge = wants_judge
        self._on_digested = on_digested
        self._trust = trust
        self._behind = Behind()
        self._to_grade, self._to_sort = asyncio.Event(), asyncio.Event()
        # The first id that may wait for a skill to be looked for; None: none waits.
        self._unsorted_since: str | None = ""

    def close(self) -> None:
        """Let the threads go; what they do at this moment they finish."""
        self._behind.close()

    def wake(self) -> None:
        """Say that there may be something to digest."""
        self._to_grade.set()
        self._to_sort.set()

    async def grade(self) -> None:
        """Grade what there is, then wait for more; until cancelled."""
        await self._repeat(self._grade_some, self._to_grade)

    async def sort(self) -> None:
        """Find skills for what there is, then wait for more; until cancelled."""
        await self._repeat(self._sort_some, self._to_sort)

    async def warm_up(self) -> None:
        """Load the embedder, which takes seconds of a core."""
        try:
            await self._behind.run(self._sorter.warm_up)
        except DenizenError as error:
            log.error("no skills will be found: %s", error)

    async def _repeat(self, work: Callable[[], Awaitable[int]], wake: asyncio.Event) -> None:
        while True:
            wake.clear()
            began = time.monotonic()
            try:
                while await work():
                    await self._rest(time.monotonic() - began)
                    began = time.monotonic()
            except Exception:  # the next episode must still be digested
                log.exception("digesting episodes failed; tried again with the next one")
                self._sorter.distrust()  # it may know what was not stored
            await wake.wait()

    async def _rest(self, worked_s: float) -> None:
        """Leave the machine to the answers, as long as there are any."""
        until = time.monotonic() + min(REST_FACTOR * worked_s, MAX_REST_S)
        while self._is_answering() and (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, REST_LOOK_S))

    async def _grade_some(self) -> int:
        """Grade one batch of episodes; return how many."""
        episodes = await self._behind.run(self._store.episodes.undigested, BATCH)
        if not episodes:
            return 0
        told = await self._behind.run(self._read, episodes)
        digests = [await self._work_out(one) for one in told]

        def write(db: Transaction) -> None:
            for digest in digests:
                set_grades(db, digest.episode, digest.grades, digest.outcome)
                wished = digest.answer_id if digest.is_to_judge else None
                judge_queue.wish(db, digest.episode.id, wished)
                if digest.answer_id is not None:
                    retire_judged(db, digest.episode.id, digest.answer_id)
                if digest.task is not None:
                    replace_derived(db, digest.task)

        await self._store.database.write_async(write)
        self._on_digested()
        self._sort_from(episodes[0].id)
        self._to_sort.set()
        return len(episodes)

    async def _sort_some(self) -> int:
        """Sort one batch of episodes and one of tasks; return how many found their place."""
        since, self._unsorted_since = self._unsorted_since, None
        try:
            num_sorted = 0 if since is None else await self._sort(since)
            tasks = await self._behind.run(self._store.tasks.without_skill, BATCH)
            return num_sorted + (await self._place(tasks) if tasks else 0)
        except SkillsMovedError:
            self._sort_from(since)
            return 1  # done again at once, with the skills as they are
        except Exception:
            self._sort_from(since)
            raise

    def _sort_from(self, id: str | None) -> None:
        """Say that this episode, and those after it, may have no skill yet."""
        known = [one for one in (id, self._unsorted_since) if one is not None]
        self._unsorted_since = min(known, default=None)

    async def _sort(self, since: str) -> int:
        episodes, asked = await self._behind.run(self._unsorted, since)
        if not episodes:
            return 0
        found = await self._behind.run(self._sorter.sort_episodes, episodes, asked)

        def write(db: Transaction) -> int:
            self._sorter.check(db)
            for one in found:
                self._sorter.save_episode(db, one)
            return self._sorter.seen(db)

        self._sorter.committed(await self._store.database.write_async(write))
        self._on_digested()
        if len(episodes) == BATCH:
            self._sort_from(episodes[-1].id)
        return len(episodes)

    def _unsorted(self, since: str) -> tuple[list[Episode], list[Sequence[str]]]:
        store = self._store.episodes
        episodes = store.unsorted(since, BATCH)
        return episodes, [_asked(one, store.call_texts(one.id, limit=1)) for one in episodes]

    async def _place(self, tasks: Sequence[TaskSpec]) -> int:
        found = await self._behind.run(self._sorter.sort_tasks, tasks)

        def write(db: Transaction) -> int:
            self._sorter.check(db)
            for one in found:
                self._sorter.save_task(db, one)
            return self._sorter.seen(db)

        self._sorter.committed(await self._store.database.write_async(write))
        return sum(one.skill_id is not None for one in found)

    def _read(self, episodes: Sequence[Episode]) -> list["_Told"]:
        store = self._store.episodes
        return [
            _Told(
                episode=one,
                calls=store.call_texts(one.id),
                feedback=store.feedback(one.id),
                grades=store.grades(one.id),
            )
            for one in episodes
        ]

    async def _work_out(self, told: "_Told") -> Digest:
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


def _asked(episode: Episode, calls: Sequence[Call]) -> Sequence[str]:
    first = calls[0].request.get("messages") if calls else None
    return asked(first or (), episode.task_text)
