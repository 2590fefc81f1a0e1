"""One learning cycle: score, make the steps, prove the candidate on held-out work, settle.

The sequence only: steps, versions, the gate and the pointer each have a module of
their own. Whatever fails in here leaves the live version untouched and a row that says why.

All that it knows stands in the store as soon as it is known, or, for weights, in the cycle's
folder: a cycle whose service ended is run again by the next one, passes over what is done, and
comes to where the first one would have come.
"""

import asyncio
import logging
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learner import curriculum, live_proof, metrics
from learner.drift import limited
from learner.errors import CycleStoppedError, NoSignalError, TrainingError
from learner.gate import GateReport, Verdict, compare
from learner.live_record import LiveRecord
from learner.receipts import cycle_receipt, effect_receipt, has_no_effect, why_no_signal
from learner.rehearsal import choose_rehearsed
from learner.steps import Steps
from learner.training_process import TrainingProcess
from learner.workshop import Progress, Workshop
from memory.errors import ConflictError
from memory.types import (
    AdapterVersion,
    Cycle,
    CycleStage,
    CycleState,
    Split,
    TaskRole,
    TaskSpec,
    VersionStatus,
)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LearningCycle:
    """One run. ``await run()`` never raises for a failed cycle; the verdict is in the store."""

    cycle: Cycle
    workshop: Workshop
    progress: Progress = field(default_factory=Progress)
    why_stopped: str | None = None  # set before it is cancelled for good; else it waits
    effect: Mapping[str, Any] | None = None  # of training on rewarded answers, where it is known

    async def run(self) -> Cycle:
        """Learn, prove, and settle what becomes of it.

        Cancelled, it waits as it is for the next service; with ``why_stopped``, it has ended.
        """
        try:
            state, reason = await self._learn()
            if has_no_effect(self.effect):
                reason += "; no effect: rewarded answers have not become likelier than others"
        except NoSignalError as error:
            state, reason = CycleState.NO_SIGNAL, error.message
        except CycleStoppedError as error:
            state, reason = CycleState.INTERRUPTED, error.message
        except asyncio.CancelledError:
            if self.why_stopped is None:
                self.workshop.store.cycles.note_stop(self.cycle.id)
            else:
                self.end(CycleState.INTERRUPTED, self.why_stopped)
            raise
        except Exception as error:  # a failed cycle is a row, not an outage
            log.exception("cycle %s failed", self.cycle.id)
            state, reason = CycleState.FAILED, f"{type(error).__name__}: {error}"
        return self.end(state, reason)

    def end(self, state: CycleState, reason: str) -> Cycle:
        """Write the verdict down, and delete what the cycle has left in files."""
        store = self.workshop.store
        if state in {CycleState.FAILED, CycleState.INTERRUPTED}:
            store.versions.reject_unproven(self.cycle.id)
        summed = cycle_receipt([step.receipt for step in store.cycles.steps(self.cycle.id)])
        receipt = {**self.cycle.receipt, **summed, **effect_receipt(self.effect)}
        ended = store.cycles.end(self.cycle.id, state, reason, receipt=receipt)
        shutil.rmtree(self._dir, ignore_errors=True)
        metrics.CYCLES.labels(state.value).inc()
        return ended

    @property
    def _dir(self) -> Path:
        return self.workshop.work_dir / self.cycle.id

    async def _learn(self) -> tuple[CycleState, str]:
        shop = self.workshop
        tasks = await asyncio.to_thread(self._tasks)
        tests = [*tasks[TaskRole.HELDOUT], *tasks[TaskRole.GUARD]]
        made = shop.store.versions.of_cycle(self.cycle.id)
        if made is None:
            made = await self._seal(await self._train(tests, tasks[TaskRole.TRAIN]))
        name = made.id
        shop.check_erasure(self.cycle.id)
        shop.store.cycles.set_candidate(self.cycle.id, name)
        self.progress.phase = "publishing the candidate"
        with metrics.seconds_in("publishing"):
            await shop.weights.publish(name)
        before = await self._score(tests, self.cycle.start_version, "before")  # as recorded
        self.progress.phase = "scoring the candidate on held-out tasks"
        after = await self._score(tests, name, "after")
        skills = {task.id: task.skill_id for task in tests}
        if tasks[TaskRole.HELDOUT]:
            guards = frozenset(task.id for task in tasks[TaskRole.GUARD])
            report = compare(before, after, skills, config=shop.gate, guards=guards)
            shown, goes_live = report.to_json(), shop.promotes_by_itself
        else:
            guarded = compare(before, after, skills, config=shop.gate)
            report, shown, goes_live = await self._prove_live(guarded, name)
        report, drift = await self._limit_drift(report, name, tasks[TaskRole.HELDOUT])
        shown |= report.verdict_to_json() | drift
        shop.check_erasure(self.cycle.id)
        shop.store.cycles.set_gate(self.cycle.id, shown)
        self.progress.phase = "settling"
        return await self._settle(name, report, goes_live=goes_live)

    async def _prove_live(
        self, guards: GateReport, name: str
    ) -> tuple[GateReport, dict[str, Any], bool]:
        """Prove a candidate on recorded episodes.

        Returns:
            The report, what is shown of it, and whether it may go live without a person.
        """
        shop = self.workshop
        if shop.live is None:
            raise NoSignalError("there are no held-out tasks")
        self.progress.phase = "comparing recorded answers"
        with metrics.seconds_in("comparing"):
            live = await shop.live.proof.compare(self.cycle, name)
        report = live_proof.judge(guards, live, shop.gate)
        goes_live = shop.promotes_by_itself and shop.live.promotes_by_itself
        is_proven = live_proof.is_proven(live, shop.gate)
        return report, report.to_json() | {"live": live.to_json()}, goes_live and is_proven

    async def _limit_drift(
        self, report: GateReport, name: str, practised: Sequence[TaskSpec]
    ) -> tuple[GateReport, dict[str, Any]]:
        """Return the report as limits of drift leave it, and what is shown of the drift."""
        if (proof := self.workshop.drift) is None:
            return report, {}
        self.progress.phase = "measuring drift"
        with metrics.seconds_in("comparing"):
            drift = await proof.measure(self.cycle, name, {task.id for task in practised})
        return limited(report, drift, proof.config), {"drift": drift.to_json()}

    async def _train(self, tests: Sequence[TaskSpec], train: Sequence[TaskSpec]) -> Steps:
        """Score the live version and make the steps that are left."""
        shop, start = self.workshop, self.cycle.start_version
        steps = Steps(
            cycle=self.cycle,
            workshop=shop,
            progress=self.progress,
            folder=self._dir,
            name=shop.registry.next_name(),
        )
        await asyncio.to_thread(steps.restore)
        if not steps.are_done:
            parent = await shop.registry.parent_path(start)
            async with shop.open_training(parent, steps.weights) as training:
                self.progress.phase = "scoring the live version on held-out tasks"
                await self._score(tests, start, "before")
                await steps.run(train, training)
                self.effect = await self._effect(training)
        return steps

    async def _effect(self, training: TrainingProcess) -> Mapping[str, Any] | None:
        try:
            return await training.effect()
        except TrainingError:  # the weights are safe; a cycle is not lost for a figure of it
            log.warning("what training did to rewarded answers is not known", exc_info=True)
            return None

    async def _seal(self, steps: Steps) -> AdapterVersion:
        """Make a version of what the steps have left.

        Raises:
            NoSignalError: no step taught anything.
        """
        shop, weights = self.workshop, steps.weights
        if weights is None:
            raise NoSignalError(why_no_signal([step.receipt for step in steps.done]))
        self.progress.phase = "sealing the candidate"
        shop.check_erasure(self.cycle.id)
        return await asyncio.to_thread(
            shop.registry.seal,
            weights,
            parent=self.cycle.start_version,
            cycle_id=self.cycle.id,
            episode_ids=steps.taught(),
        )

    async def _score(
        self, tests: Sequence[TaskSpec], adapter: str, stage: str
    ) -> dict[str, float | None]:
        at = CycleStage(cycle_id=self.cycle.id, name=stage)
        with metrics.seconds_in("scoring"):
            return await self.workshop.practice.score(tests, adapter=adapter, stage=at)

    def _tasks(self) -> dict[TaskRole, list[TaskSpec]]:
        """Return what the cycle works on; the choice is written down before anything is done.

        Raises:
            NoSignalError: there is nothing to practise, or too little to prove a gain on.
        """
        cycles = self.workshop.store.cycles
        found = cycles.tasks(self.cycle.id)
        if not found:
            found = self._choose_tasks()
            cycles.set_tasks(self.cycle.id, found)
        return {role: found.get(role, []) for role in TaskRole}

    def _choose_tasks(self) -> dict[TaskRole, list[TaskSpec]]:
        """Choose tasks to practise, held-out ones to prove a gain, and ones of other skills."""
        shop, mine = self.workshop, self.cycle.skill_ids
        train = shop.store.tasks.of_skills(mine, Split.TRAIN)
        rng = random.Random(self.cycle.id)
        others = [skill.id for skill in shop.store.skills.all() if skill.id not in mine]
        heldout, guards = (
            self._sample(shop.store.tasks.of_skills(skill_ids, Split.HELDOUT), num, rng)
            for skill_ids, num in (
                (mine, shop.learner.max_heldout_tasks),
                (others, shop.learner.max_heldout_tasks // 2),
            )
        )
        found = {TaskRole.GUARD: guards}
        found[TaskRole.REHEARSAL] = choose_rehearsed(shop.store, self.cycle, shop.learner)
        if (why_not := self._why_not_practised(len(train), len(heldout))) is None:
            return found | {TaskRole.TRAIN: train, TaskRole.HELDOUT: heldout}
        record = shop.live.groups.record(self.cycle) if shop.live else LiveRecord()
        if not record.train:
            raise NoSignalError(f"{why_not}; {record.why_nothing}" if shop.live else why_not)
        return found

    def _why_not_practised(self, num_train: int, num_heldout: int) -> str | None:
        min_tasks = self.workshop.gate.min_tasks
        if not num_train:
            return "the skills have no training tasks"
        if num_heldout < min_tasks:
            return (
                f"the skills have {num_heldout} of {min_tasks} held-out tasks "
                "(promotion.min_tasks), too few to prove a gain"
            )
        return None

    def _sample(self, tasks: list[TaskSpec], num: int, rng: random.Random) -> list[TaskSpec]:
        """Choose other tasks in each cycle, so that retries are not selected on the same ones."""
        rng.shuffle(tasks)
        return curriculum.choose(tasks, num, rng)

    async def _settle(
        self, name: str, report: GateReport, *, goes_live: bool
    ) -> tuple[CycleState, str]:
        pointer, reason = self.workshop.pointer, "; ".join(report.reasons)
        status = self.workshop.store.versions.get(name).status
        if self.cycle.num_resumes and status is not VersionStatus.CANDIDATE:
            return self._decided(name), reason  # before its service ended
        try:
            if report.verdict is Verdict.REJECT:
                await pointer.reject(name, reason=reason)
                return CycleState.REJECTED, reason
            if report.verdict is Verdict.INCONCLUSIVE:
                return CycleState.INCONCLUSIVE, reason
            if not goes_live:
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
