"""From a finished episode to signal: its skill, grades, outcome, and the task it makes.

Runs behind the answers and catches up after a restart: whatever the store lists as undigested is
taken, oldest first. While requests are answered it rests most of the time: to embed a text takes
many times as much of a core as an answer's whole way through the gateway. It does not know how
texts are embedded or grades are reached.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graders.catalog import DEFAULT_GRADER
from graders.feedback import grade_feedback, newest_correction
from graders.outcome import merge
from graders.types import Answer, Grader
from learner import tasks as task_specs
from learner.tasks import TasksConfig
from learner.trees import main_line
from memory.database import Transaction
from memory.embed import Embedding
from memory.episode_store import set_grades, set_skill
from memory.errors import DenizenError
from memory.skill_store import save_skill
from memory.skills import Assignment, Embedder, SkillAssigner
from memory.store import Store
from memory.task_store import replace_derived, set_task_skill
from memory.types import (
    Call,
    CallStatus,
    Episode,
    Feedback,
    Grade,
    GradeKind,
    Outcome,
    TaskSpec,
)

log = logging.getLogger(__name__)
BATCH = 16
"""Written at once; answers whose records wait behind it come a few milliseconds later."""
REST_FACTOR = 3
"""While requests are answered, how many times as long as it works it rests: a quarter of a core."""
REST_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """What was worked out of one episode."""

    episode: Episode
    grades: Sequence[Grade]
    outcome: Outcome
    task: TaskSpec | None


class Intake:
    """Digests episodes and places imported tasks, in the background."""

    def __init__(
        self,
        *,
        store: Store,
        embedder: Embedder,
        load_assigner: Callable[[], SkillAssigner],
        grader_of: Callable[[str], Grader],
        config: TasksConfig,
        is_answering: Callable[[], bool],
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._load_assigner = load_assigner
        self._assigner = load_assigner()
        self._is_assigner_stale = False
        self._grader_of = grader_of
        self._config = config
        self._is_answering = is_answering
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()

    def wake(self) -> None:
        """Say that there may be something to digest."""
        self._wake.set()

    async def run(self) -> None:
        """Digest what there is, then wait for more; until cancelled."""
        while True:
            self._wake.clear()
            began = time.monotonic()
            try:
                while await self.digest_some():
                    await self._rest(time.monotonic() - began)
                    began = time.monotonic()
            except Exception:  # the next episode must still be digested
                log.exception("digesting episodes failed; tried again with the next one")
                self._is_assigner_stale = True  # it may know what was not stored
            await self._wake.wait()

    async def warm_up(self) -> None:
        """Load the embedder, which takes seconds of a core."""
        try:
            await self._embed(["warm up"])
        except DenizenError as error:
            log.error("episodes will not be digested: %s", error)

    async def _rest(self, worked_s: float) -> None:
        """Leave the machine to the answers, as long as there are any."""
        until = time.monotonic() + REST_FACTOR * worked_s
        while self._is_answering() and (left_s := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left_s, REST_LOOK_S))

    async def digest_some(self) -> int:
        """Digest one batch of episodes and one of tasks; return how many found their place."""
        async with self._turn:
            if self._is_assigner_stale:
                self._assigner = self._load_assigner()
                self._is_assigner_stale = False
            episodes = await asyncio.to_thread(self._store.episodes.undigested, BATCH)
            tasks = await asyncio.to_thread(self._store.tasks.without_skill, BATCH)
            if episodes:
                await self._digest(episodes)
            num_placed = await self._place(tasks) if tasks else 0
            return len(episodes) + num_placed

    async def _digest(self, episodes: Sequence[Episode]) -> None:
        told = await asyncio.to_thread(self._read, episodes)
        digests = [await self._work_out(*one) for one in told]
        fresh = [digest.episode for digest in digests if digest.episode.skill_id is None]
        embeddings = await self._embed([episode.task_text for episode in fresh])
        placed = {
            episode.id: (embedding, self._assign(episode, embedding))
            for episode, embedding in zip(fresh, embeddings, strict=True)
        }

        def write(db: Transaction) -> None:
            for digest in digests:
                embedding, assignment = placed.get(digest.episode.id, (None, None))
                skill_id = digest.episode.skill_id
                if embedding is not None and assignment is not None:
                    skill_id = self._save_skill(db, digest.episode.id, embedding, assignment)
                set_grades(db, digest.episode, digest.grades, digest.outcome)
                if digest.task is not None:
                    replace_derived(db, digest.task)
                    if skill_id is not None:
                        set_task_skill(db, digest.task.id, skill_id)

        await self._store.database.write_async(write)

    async def _place(self, tasks: Sequence[TaskSpec]) -> int:
        embeddings = await self._embed([task.text for task in tasks])
        assignments = [
            self._assigner.assign(task.text, embedding, task_key=task.task_key)
            for task, embedding in zip(tasks, embeddings, strict=True)
        ]

        def write(db: Transaction) -> None:
            for task, assignment in zip(tasks, assignments, strict=True):
                if assignment.skill is not None:
                    _save(db, assignment)
                    set_task_skill(db, task.id, assignment.skill.id)

        await self._store.database.write_async(write)
        return sum(assignment.skill is not None for assignment in assignments)

    async def _embed(self, texts: Sequence[str]) -> list[Embedding]:
        return await asyncio.to_thread(self._embedder.embed, texts) if texts else []

    def _assign(self, episode: Episode, embedding: Embedding) -> Assignment:
        return self._assigner.assign(episode.task_text, embedding, task_key=episode.task_key)

    def _save_skill(
        self,
        db: Transaction,
        episode_id: str,
        embedding: Embedding,
        assignment: Assignment,
    ) -> int | None:
        if assignment.skill is not None:
            _save(db, assignment)
        skill_id = assignment.skill.id if assignment.skill else None
        set_skill(
            db,
            episode_id,
            skill_id=skill_id,
            embedder=self._embedder.id,
            vector_D=embedding.vector_D,
            missing_reason=embedding.reason,
        )
        return skill_id

    def _read(
        self, episodes: Sequence[Episode]
    ) -> list[tuple[Episode, list[Call], list[Feedback]]]:
        store = self._store.episodes
        return [(one, store.calls(one.id), store.feedback(one.id)) for one in episodes]

    async def _work_out(
        self, episode: Episode, calls: Sequence[Call], feedback: Sequence[Feedback]
    ) -> Digest:
        task = main_line(calls)  # a title's or a sub-agent's answer is not the task's
        answered = [call for call in task if call.status is CallStatus.OK and call.message]
        grades = await self._check(episode, answered[-1]) if answered else []
        grades += grade_feedback(feedback)
        return Digest(
            episode=episode,
            grades=grades,
            outcome=merge(grades),
            task=self._task_of(episode, answered, feedback),
        )

    async def _check(self, episode: Episode, call: Call) -> list[Grade]:
        """Return the check's grade of the last answer, where there is something to check."""
        if episode.reference is None and episode.grader is None:
            return []
        name = episode.grader or DEFAULT_GRADER
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


def _save(db: Transaction, assignment: Assignment) -> None:
    skill = assignment.skill
    if skill is None:
        raise ValueError("an assignment without a skill has nothing to save")
    save_skill(
        db,
        skill_id=skill.id,
        title=skill.title,
        task_key=skill.task_key,
        centroid_D=skill.centroid_D,
        count=skill.count,
    )
