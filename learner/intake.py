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
from typing import TypeVar

from learner.digest import Digestion, Told
from memory import judge_queue
from memory.behind import Behind
from memory.database import Transaction
from memory.errors import DenizenError
from memory.grade_rows import retire_judged, set_grades
from memory.sorter import SkillsMovedError, Sorter
from memory.store import Store
from memory.task_store import replace_derived
from memory.task_texts import asked
from memory.types import Call, Episode, TaskSpec

log = logging.getLogger(__name__)
BATCH = 16
"""Written at once; answers whose records wait behind it come a few milliseconds later."""
REST_FACTOR = 9
"""While requests are answered, how many times as long as it works it rests: a tenth of a core."""
MAX_REST_S = 3.0
"""After work that took long because it waited for a processor."""
REST_LOOK_S = 0.1

T = TypeVar("T")


class Intake:
    """Digests episodes and places imported tasks, in the background."""

    def __init__(
        self,
        *,
        store: Store,
        sorter: Sorter,
        digestion: Digestion,
        is_answering: Callable[[], bool],
        on_digested: Callable[[], None],
    ) -> None:
        self._store = store
        self._sorter = sorter
        self._digestion = digestion
        self._is_answering = is_answering
        self._on_digested = on_digested
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
        digests = [await self._digestion.work_out(one) for one in told]

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
        episodes, texts = await self._behind.run(self._unsorted, since)
        if not episodes:
            return 0
        found = await self._behind.run(self._sorter.sort_episodes, episodes, texts)
        await self._save(self._sorter.save_episode, found)
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
        await self._save(self._sorter.save_task, found)
        return sum(one.skill_id is not None for one in found)

    async def _save(self, save: Callable[[Transaction, T], None], found: Sequence[T]) -> None:
        """Write where things were put, unless the skills have moved since."""

        def write(db: Transaction) -> int:
            self._sorter.check(db)
            for one in found:
                save(db, one)
            return self._sorter.seen(db)

        self._sorter.committed(await self._store.database.write_async(write))

    def _read(self, episodes: Sequence[Episode]) -> list[Told]:
        store = self._store.episodes
        return [
            Told(
                episode=one,
                calls=store.call_texts(one.id),
                feedback=store.feedback(one.id),
                grades=store.grades(one.id),
            )
            for one in episodes
        ]


def _asked(episode: Episode, calls: Sequence[Call]) -> Sequence[str]:
    first = calls[0].request.get("messages") if calls else None
    return asked(first or (), episode.task_text)
