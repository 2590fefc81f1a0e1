"""Asks judges about planted answers, a few at a time, until enough is known of each.

What they say is kept beside the record; ``graders/calibration.py`` reads it. It does not know what
kind of model a judge is, nor what follows from a failure.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from graders.biases import Swap, read_swap
from graders.canaries import Canary, Planted, plant
from graders.trust import SWAP
from graders.types import Answer, Grader
from memory.judge_evidence import JudgeEvidence, Probe
from memory.types import Grade, TaskSpec, utc_now

log = logging.getLogger(__name__)
ENOUGH = 12
"""Planted answers of each kind for one version of a judge in one skill; by then a judge that fails
half of a kind raises the alarm with probability 0.61, one that fails 70 % with 0.96.
"""
TASKS_PER_RUN = 2  # of one judge in one skill: 8 questions to one that scores, 6 to one that ranks
EPISODE_ORIGIN = "episode:"


class Ranker(Protocol):
    """Orders the answers of one group, asked in several orders.

    The first two votes see them in opposite orders. ``evidence`` of each grade holds ``orders``, by
    vote the places of the answers as shown, and ``ranked``, by readable vote the places from the
    best on.
    """

    @property
    def name(self) -> str:
        """Name the judge, as its grades do."""

    @property
    def version(self) -> str:
        """Name all that its grades depend on."""

    async def rank(self, answers: Sequence[Answer]) -> list[Grade]:
        """Return a grade for each answer, in their order."""


class Prober:
    """Plants answers before judges.

    Args:
        evidence: where the verdicts are kept.
        tasks_of: the tasks of a skill whose right answer is known.
        judges_of: who scores the skill's answers.
        rankers_of: who ranks them.
    """

    def __init__(
        self,
        *,
        evidence: JudgeEvidence,
        tasks_of: Callable[[int], Sequence[TaskSpec]],
        judges_of: Callable[[int], Sequence[Grader]],
        rankers_of: Callable[[int], Sequence[Ranker]] = lambda _skill_id: (),
    ) -> None:
        self._evidence = evidence
        self._tasks_of = tasks_of
        self._judges_of = judges_of
        self._rankers_of = rankers_of

    async def run(self, skill_ids: Iterable[int]) -> int:
        """Plant before each judge of the skills what it lacks; return how many verdicts came."""
        known = self._evidence.probes()
        num = 0
        for skill_id in skill_ids:
            tasks = self._tasks_of(skill_id)
            for judge in self._judges_of(skill_id):
                for planted, task in _next(judge.name, judge.version, skill_id, known, tasks):
                    num += await self._keep(await _scored(judge, planted, task, skill_id))
            for ranker in self._rankers_of(skill_id):
                for planted, task in _next(ranker.name, ranker.version, skill_id, known, tasks):
                    num += await self._keep(await _ranked(ranker, planted, task, skill_id))
        return num

    async def _keep(self, probes: Sequence[Probe]) -> int:
        """Write down what a judge said of one task; one that said nothing is asked again."""
        if not any(_says_something(probe) for probe in probes):
            log.warning("a judge gave no verdict on the answers planted for %s", probes[0].task_id)
            return 0
        await self._evidence.add_probes(probes)
        return len(probes)


def swap_of(grades: Sequence[Grade]) -> Swap:
    """Read from the evidence of a ranking of two what became of them in both orders."""
    evidence: Mapping[str, Any] = grades[0].evidence if grades else {}
    orders, ranked = evidence.get("orders") or [], evidence.get("ranked") or []
    if len(orders) < 2 or len(ranked) != len(orders) or orders[0] != list(reversed(orders[1])):
        return Swap.UNDECIDED
    as_given, swapped = (ranked[vote][0] == orders[vote][0] for vote in (0, 1))
    return read_swap(as_given, swapped)


def _next(
    grader: str,
    version: str,
    skill_id: int,
    known: Sequence[Probe],
    tasks: Sequence[TaskSpec],
) -> list[tuple[list[Planted], TaskSpec]]:
    """Choose tasks that this version of the judge has not been asked about; none when enough."""
    its = [p for p in known if (p.grader, p.version, p.skill_id) == (grader, version, skill_id)]
    asked = {probe.task_id for probe in its}
    num_left = min(TASKS_PER_RUN, ENOUGH - len(asked))
    chosen: list[tuple[list[Planted], TaskSpec]] = []
    for task in tasks:
        if len(chosen) >= num_left:
            break
        planted = [] if task.id in asked else plant(task, tasks)
        if planted:
            chosen.append((planted, task))
    return chosen


def _says_something(probe: Probe) -> bool:
    return probe.value is not None or probe.swap not in {None, Swap.UNDECIDED}


async def _scored(
    judge: Grader, planted: Sequence[Planted], task: TaskSpec, skill_id: int
) -> list[Probe]:
    probes = []
    for one in planted:
        grade = await judge.grade(one.answer)
        probes.append(_probe(judge, task, skill_id, kind=one.kind, value=grade.value))
    return probes


async def _ranked(
    ranker: Ranker, planted: Sequence[Planted], task: TaskSpec, skill_id: int
) -> list[Probe]:
    """Rank the right answer against each wrong one: its own place, theirs, and what seats did."""
    by_kind = {one.kind: one.answer for one in planted}
    right = by_kind.pop(Canary.KNOWN_GOOD)
    probes = []
    for kind, wrong in by_kind.items():
        grades = await ranker.rank([right, wrong])
        if kind is Canary.KNOWN_BAD:
            good = grades[0].value
            probes.append(_probe(ranker, task, skill_id, kind=Canary.KNOWN_GOOD, value=good))
        probes.append(_probe(ranker, task, skill_id, kind=kind, value=grades[1].value))
        probes.append(_probe(ranker, task, skill_id, kind=SWAP, swap=swap_of(grades)))
    return probes


def _probe(
    judge: Grader | Ranker,
    task: TaskSpec,
    skill_id: int,
    *,
    kind: str,
    value: float | None = None,
    swap: Swap | None = None,
) -> Probe:
    is_derived = task.origin.startswith(EPISODE_ORIGIN)
    return Probe(
        grader=judge.name,
        version=judge.version,
        skill_id=skill_id,
        task_id=task.id,
        episode_id=task.origin.removeprefix(EPISODE_ORIGIN) if is_derived else None,
        kind=str(kind),
        created_at=utc_now(),
        value=value,
        swap=swap,
    )
