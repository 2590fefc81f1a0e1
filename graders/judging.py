"""Judges what waits for a judge, behind everything else.

Takes answers from the queue, some at a time, and writes each grade down; the episode's outcome is
then merged again by whoever merges. A judge that hangs costs its deadline and nothing else: checks,
people's feedback, skills and chat do not wait for it. It does not know which answers want a judge,
or whether a grade may teach.
"""

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from graders import metrics
from graders.judge import JUDGE, GradeCache, Judge
from graders.rubrics import RubricOf
from graders.teacher import Teacher
from graders.types import Answer
from graders.votes import VotesConfig
from memory import judge_queue
from memory.database import Transaction
from memory.errors import NotFoundError, StoreError
from memory.fences import ControlTokens
from memory.grade_rows import set_judged
from memory.judge_queue import JudgeQueue, Waiting
from memory.store import Store
from memory.types import Call, Episode, EpisodeSource, Grade, GradeKind

log = logging.getLogger(__name__)
LOOK_S = 15.0
"""How often to look for answers whose time has come again."""
YIELD_LOOK_S = 0.1
MAX_YIELD_S = 60.0
"""How long one judgement waits for answers to end that share the engine with it. Traffic that
never ends must not mean that nothing is ever judged."""
MAX_TRIES = 3
FIRST_RETRY_S = 60.0
"""After a failure that may pass; then twice as long."""


class JudgeConfig(VotesConfig):
    """Settings of ``[graders]`` about judges: who is judged, how, and for how much."""

    judge: Literal["off", "asked", "all"] = "asked"
    """Which episodes a judge looks at: none; those with ``metadata.grader: "judge"``; or also those
    that neither a check nor a person has graded, unless they are kept from learning. What they said
    is sent to ``[teacher]`` as it is recorded. Where its scores are trusted, learning also has it
    rank recorded turns that are taken again (``learner.next_turns_per_step``).

    To find out how far it can be trusted, a judge is also asked about answers that a check or a
    person has graded, and is not shown their reference: with "all" in every skill, with "asked"
    only in skills where an episode or a task has named the judge. The newest come first, a few a
    minute (half of ``max_calls_per_hour``), until there are four times ``min_pairs`` of them in the
    skill; none that is kept from learning, so none of a tenant that ``privacy.learn_from`` omits.
    """
    max_parallel: int = Field(default=4, ge=1, le=64)
    """Judgements, and questions to the judge's model, that are under way at once."""
    deadline_s: float = Field(default=120.0, gt=0.0)
    """How long one question may take, retries included; then the grade is None, "judge_timeout".
    On two cores the packaged model needs about 30 s.
    """
    max_calls_per_hour: int = Field(default=1_000, ge=1)
    """Requests to the judge's model, retries included; then answers wait."""
    max_tokens_per_hour: int = Field(default=2_000_000, ge=1)
    """Tokens that it may read and write in an hour; then answers wait."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The times that the background part keeps; tests choose others."""

    look_s: float = LOOK_S
    first_retry_s: float = FIRST_RETRY_S
    max_yield_s: float = MAX_YIELD_S


class Judging:
    """The background part of judging.

    Args:
        store: the record.
        teacher: the model behind the judge.
        config: how a judge is asked, and how many at once.
        rubric_of: the rubric that a person gave to a skill.
        control_tokens: the literals that the model's tokenizer reads as tokens.
        on_judged: called after each grade, so that the outcome is merged again.
        has_to_wait: whether what judges is answering somebody, or is not there just now.
        pace: its times.
    """

    def __init__(
        self,
        *,
        store: Store,
        teacher: Teacher,
        config: JudgeConfig,
        rubric_of: RubricOf,
        control_tokens: ControlTokens,
        on_judged: Callable[[], None],
        has_to_wait: Callable[[], bool],
        pace: Pace | None = None,
    ) -> None:
        self.cache = GradeCache()
        self._store = store
        self._queue = JudgeQueue(store.database)
        self._teacher = teacher
        self._config = config
        self._rubric_of = rubric_of
        self._control_tokens = control_tokens
        self._on_judged = on_judged
        self._has_to_wait = has_to_wait
        self._pace = pace or Pace()
        self._wake = asyncio.Event()
        self._taking = asyncio.Lock()
        self._taken: set[str] = set()  # episodes that are being judged
        self._results: Counter[str] = Counter()

    def wake(self) -> None:
        """Say that an answer may wait."""
        self._wake.set()

    async def run(self) -> None:
        """Judge what waits, and what will; until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._config.max_parallel):
                group.create_task(self._work())

    def report(self) -> dict[str, Any]:
        """Return progress and cost for people who watch."""
        tally, pause = self._teacher.tally, self._teacher.pause()
        return {
            "model": self._teacher.name,
            "waiting": self._queue.num_waiting(),
            "under_way": len(self._taken),
            "results": dict(self._results),
            "calls": tally.num_calls,
            "failed_calls": tally.num_failed,
            "tokens": tally.num_tokens,
            "calls_without_tokens": tally.num_calls_without_tokens,
            "seconds": round(tally.seconds, 3),
            "paused": None if pause is None else pause[1],
            "paused_for_s": None if pause is None else round(pause[0], 1),
        }

    def forget(self, _: Collection[str]) -> None:
        """Forget what episodes said that are erased."""
        self.cache.clear()

    def judge_for(self, episode: Episode) -> Judge:
        """Return the judge of an episode: its skill's rubric, or the default one."""
        return self.judge_of(episode.skill_id, has_reference=episode.reference is not None)

    def judge_of(self, skill_id: int | None, *, has_reference: bool) -> Judge:
        """Return the judge of a skill's answers, with or without a reference."""
        return Judge(
            self._teacher,
            rubric=self._rubric_of(skill_id),
            has_reference=has_reference,
            config=self._config,
            control_tokens=self._control_tokens,
            cache=self.cache,
        )

    async def _work(self) -> None:
        while True:
            try:
                waiting = await self._take()
            except StoreError:
                log.exception("the answers that wait for a judge cannot be read; looked for again")
                await asyncio.sleep(self._pace.look_s)
                continue
            try:
                await self._judge(waiting)
            except Exception:  # the next one must still be judged
                log.exception("judging episode %s failed", waiting.episode_id)
                await self._put_off(waiting)
            finally:
                self._taken.discard(waiting.episode_id)

    async def _take(self) -> Waiting:
        """Return the next that nobody else has taken; one looks, the others wait."""
        async with self._taking:
            while True:
                self._wake.clear()
                if (pause := self._teacher.pause()) is not None:
                    await asyncio.sleep(min(pause[0], self._pace.look_s))
                    continue
                metrics.WAITING.set(await asyncio.to_thread(self._queue.num_waiting))
                limit = len(self._taken) + 1
                for waiting in await asyncio.to_thread(self._queue.due, limit):
                    if waiting.episode_id not in self._taken:
                        await self._give_way()
                        self._taken.add(waiting.episode_id)
                        return waiting
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._pace.look_s)

    async def _give_way(self) -> None:
        """Wait until nobody is answered by what judges, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.max_yield_s):
                while self._has_to_wait():
                    await asyncio.sleep(YIELD_LOOK_S)

    async def _judge(self, waiting: Waiting) -> None:
        found = await asyncio.to_thread(self._read, waiting)
        if found is None:
            await self._store.database.write_async(lambda db: judge_queue.done(db, waiting))
            return
        episode, call = found
        judge = await asyncio.to_thread(self.judge_for, episode)
        answer = Answer(
            messages=call.request.get("messages", ()),
            message=call.message or {},
            reference=episode.reference,
        )
        grade = await judge.grade(answer)
        await self._keep(waiting, grade, {"call_id": call.id, "adapter": call.adapter})

    def _read(self, waiting: Waiting) -> tuple[Episode, Call] | None:
        store = self._store.episodes
        with suppress(NotFoundError):
            episode, call = store.get(waiting.episode_id), store.call(waiting.call_id)
            return as_shown(episode, store.grades(episode.id)), call
        return None  # it went meanwhile

    async def _keep(self, waiting: Waiting, grade: Grade, target: Mapping[str, Any]) -> None:
        """Write a grade down; one that failed for the moment is tried again later."""
        result = "scored" if grade.value is not None else str(grade.unscored_reason)
        is_last = not grade.evidence.get("may_pass") or waiting.num_tries + 1 >= MAX_TRIES
        kept = dataclasses.replace(grade, evidence={**grade.evidence, **target})

        def write(db: Transaction) -> None:
            set_judged(db, waiting.episode_id, kept)
            if is_last:
                judge_queue.done(db, waiting)
            else:
                judge_queue.postpone(db, waiting, self._retry_s(waiting))

        await self._store.database.write_async(write)
        self._results[result] += 1
        metrics.JUDGEMENTS.labels(result).inc()
        self._on_judged()

    async def _put_off(self, waiting: Waiting) -> None:
        """After a fault of Denizen's own: say so on the episode, and do not try for ever."""
        reason = "judging failed; the service's log says more"
        grade = Grade(
            kind=GradeKind.JUDGE,
            grader=JUDGE,
            version="?",
            value=None,
            unscored_reason=reason,
            evidence={"may_pass": True},
        )
        try:
            await self._keep(waiting, grade, {"call_id": waiting.call_id})
        except Exception:  # the database cannot be written: it is looked at again later
            log.exception("no judge's grade can be kept of episode %s", waiting.episode_id)
            await asyncio.sleep(self._pace.look_s)

    def _retry_s(self, waiting: Waiting) -> float:
        return self._pace.first_retry_s * 2.0**waiting.num_tries


def wants_judge(config: JudgeConfig, episode: Episode, grades: list[Grade]) -> bool:
    """Say whether a judge should look at an episode.

    Args:
        config: the settings.
        episode: the episode.
        grades: what checks and people made of it.
    """
    if config.judge == "off" or episode.source is EpisodeSource.PRACTICE:
        return False  # practice is graded by its task
    is_ungraded = config.judge == "all" and episode.learn and not _is_graded(grades)
    return episode.grader == JUDGE or is_ungraded


def as_shown(episode: Episode, grades: Sequence[Grade]) -> Episode:
    """Take the reference from an answer of known worth, unless its caller asked for the judge.

    The judge's agreement is measured there, for answers without a reference: a judge that reads the
    reference agrees with the check that does, and is another version.
    """
    if episode.grader == JUDGE or not _is_graded(grades):
        return episode
    return dataclasses.replace(episode, reference=None)


def _is_graded(grades: Sequence[Grade]) -> bool:
    """Say whether a check or a person has given a value."""
    kinds = (GradeKind.CHECK, GradeKind.PERSON)
    return any(grade.kind in kinds and grade.value is not None for grade in grades)
