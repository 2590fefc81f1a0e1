"""One learning cycle: score, make the steps, prove the candidate on held-out work, settle.

The sequence only: steps, versions, the gate and the pointer each have a module of
their own. Whatever fails in here leaves the live version untouched and a row that says why.

A cycle whose service stopped is not taken up again, although the training process could go on from
a step: its rows are people's words, which an erasure would have to find until then, and what it
had sampled and scored is known to nothing but the process that died. The next one starts afresh.
"""

import asyncio
import logging
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learner import curriculum
from learner.errors import NoSignalError
from learner.gate import GateReport, Verdict, compare
from learner.receipts import cycle_receipt, why_no_signal
from learner.steps import Steps
from learner.workshop import Progress, Workshop
from memory.cycle_store import WHY_INTERRUPTED
from memory.errors import ConflictError
from memory.types import Cycle, CycleState, Split, TaskSpec, VersionStatus

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LearningCycle:
    """One run. ``await run()`` never raises for a failed cycle; the verdict is in the store."""

    cycle: Cycle
    workshop: Workshop
    progress: Progress = field(default_factory=Progress)
    _receipts: list[dict[str, Any]] = field(default_factory=list)

    async def run(self) -> Cycle:
        """Learn, prove, and settle what becomes of it."""
        try:
            state, reason = await self._learn()
        except NoSignalError as error:
            state, reason = CycleState.NO_SIGNAL, error.message
        except asyncio.CancelledError:
            self._end(CycleState.INTERRUPTED, WHY_INTERRUPTED)
            raise
        except Exception as error:  # a failed cycle is a row, not an outage
            log.exception("cycle %s failed", self.cycle.id)
            state, reason = CycleState.FAILED, f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(self._dir, ignore_errors=True)
        return self._end(state, reason)

    @property
    def _dir(self) -> Path:
        return self.workshop.work_dir / self.cycle.id

    async def _learn(self) -> tuple[CycleState, str]:
        shop, start = self.workshop, self.cycle.start_version
        train, heldout, guards = self._tasks()
        self._dir.mkdir(parents=True)
        steps = Steps(
            cycle=self.cycle,
            workshop=shop,
            progress=self.progress,
            folder=self._dir,
            name=shop.registry.next_name(),
            receipts=self._receipts,
        )
        parent = await shop.registry.parent_path(start)
        async with shop.open_training(parent) as training:
            self.progress.phase = "scoring the live version on held-out tasks"
            tests = [*heldout, *guards]
            before = await shop.practice.score(tests, adapter=start, cycle_id=self.cycle.id)
            weights = await steps.run(train, training)
        if weights is None:
            raise NoSignalError(why_no_signal(self._receipts))
        sealed = await asyncio.to_thread(
            shop.registry.seal,
            weights,
            parent=start,
            cycle_id=self.cycle.id,
            episode_ids=steps.taught,
        )
        name = sealed.id  # an import may have taken the one that was next when the cycle began
        shop.store.cycles.set_candidate(self.cycle.id, name)
        await shop.weights.publish(name)
        self.progress.phase = "scoring the candidate on held-out tasks"
        after = await shop.practice.score(tests, adapter=name, cycle_id=self.cycle.id)
        skills = {task.id: task.skill_id for task in tests}
        guard_ids = frozenset(task.id for task in guards)
        report = compare(before, after, skills, config=shop.gate, guards=guard_ids)
        shop.store.cycles.set_gate(self.cycle.id, report.to_json())
        return await self._settle(name, report)

    def _tasks(self) -> tuple[list[TaskSpec], list[TaskSpec], list[TaskSpec]]:
        """Return tasks to practise, held-out ones to prove a gain, and ones of every other skill.

        Raises:
            NoSignalError: there is nothing to practise, or too little to prove a gain on.
        """
        shop, mine = self.workshop, self.cycle.skill_ids
        train = shop.store.tasks.of_skills(mine, Split.TRAIN)
        if not train:
            raise NoSignalError("the skills have no training tasks")
        rng = random.Random(self.cycle.id)
        others = [skill.id for skill in shop.store.skills.all() if skill.id not in mine]
        heldout, guards = (
            self._sample(shop.store.tasks.of_skills(skill_ids, Split.HELDOUT), num, rng)
            for skill_ids, num in (
                (mine, shop.learner.max_heldout_tasks),
                (others, shop.learner.max_heldout_tasks // 2),
            )
        )
        if len(heldout) < shop.gate.min_tasks:
            raise NoSignalError(
                f"the skills have {len(heldout)} of {shop.gate.min_tasks} held-out tasks "
                "(promotion.min_tasks), too few to prove a gain"
            )
        return train, heldout, guards

    def _sample(self, tasks: list[TaskSpec], num: int, rng: random.Random) -> list[TaskSpec]:
        """Choose other tasks in each cycle, so that retries are not selected on the same ones."""
        rng.shuffle(tasks)
        return curriculum.choose(tasks, num, rng)

    async def _settle(self, name: str, report: GateReport) -> tuple[CycleState, str]:
        pointer, reason = self.workshop.pointer, "; ".join(report.reasons)
        try:
            if report.verdict is Verdict.REJECT:
                await pointer.reject(name, reason=reason)
                return CycleState.REJECTED, reason
            if report.verdict is Verdict.INCONCLUSIVE:
                return CycleState.INCONCLUSIVE, reason
            if not self.workshop.promotes_by_itself:
                return CycleState.PROPOSED, reason
            await pointer.approve(name, actor="gate", reason=reason)
            return CycleState.PROMOTED, reason
        except ConflictError as error:  # a person decided, or moved the pointer, meanwhile
            return self._decided(name), f"{error.message}; {reason}"

    def _decided(self, name: str) -> CycleState:
        status = self.workshop.store.versions.get(name).status
        if status is VersionStatus.CANDIDATE:
            return CycleState.PROPOSED
        was_rejected = status in {VersionStatus.REJECTED, VersionStatus.TAINTED}
        return CycleState.REJECTED if was_rejected else CycleState.PROMOTED

    def _end(self, state: CycleState, reason: str) -> Cycle:
        if state in {CycleState.FAILED, CycleState.INTERRUPTED}:
            self.workshop.store.versions.reject_unproven(self.cycle.id)
        return self.workshop.store.cycles.end(
            self.cycle.id,
            state,
            reason,
            receipt={**self.cycle.receipt, **cycle_receipt(self._receipts)},
        )
