"""Practice: tasks are tried again with given weights; each try is graded and recorded.

It does not know how an answer is sampled or a grade is reached; both come in as functions.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from graders.outcome import Trust, is_advisory, merge
from graders.types import Answer, Grader
from learner.errors import CycleStoppedError
from learner.rows import Rollout, RolloutGroup
from memory.errors import AdapterError, ConflictError, DenizenError, NotFoundError
from memory.practice_store import Practised
from memory.privacy import Privacy
from memory.store import Store
from memory.types import (
    Call,
    CycleStage,
    Episode,
    EpisodeSource,
    Grade,
    Message,
    Outcome,
    TaskSpec,
)

log = logging.getLogger(__name__)
GREEDY = {"temperature": 0.0}
NOT_ABOUT_THE_TASK = (NotFoundError, ConflictError, AdapterError)  # the weights are at fault


class SampleFn(Protocol):
    """Samples completions of one prompt from named weights."""

    async def __call__(
        self,
        *,
        adapter: str,
        messages: Sequence[Message],
        sampling: Mapping[str, Any],
        num_samples: int,
    ) -> list[Call]:
        """Return the completions, each as a call in an episode of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One graded try at a task."""

    task: TaskSpec
    call: Call
    grade: Grade
    outcome: Outcome


class Practice:
    """Tries tasks and keeps what came of it."""

    def __init__(
        self,
        *,
        sample: SampleFn,
        grader_of: Callable[[TaskSpec], Grader],
        store: Store,
        trust: Trust | None = None,
        privacy: Privacy | None = None,
        max_in_flight: int = 16,
    ) -> None:
        """Compose.

        Args:
            sample: asks the weights.
            grader_of: returns a task's grader; it sees each answer as it was sampled.
            store: where tries are recorded.
            trust: which judges may teach.
            privacy: what of a try may be recorded, as of any other call: an answer with a secret
                in it loses its token ids, and with them its place in training.
            max_in_flight: tasks that are tried at once.
        """
        self._sample = sample
        self._grader_of = grader_of
        self._store = store
        self._trust = trust
        self._privacy = privacy or Privacy()
        self._max_in_flight = max_in_flight

    async def practise(
        self,
        tasks: Sequence[TaskSpec],
        *,
        adapter: str,
        num_samples: int,
        sampling: Mapping[str, Any],
        stage: CycleStage | None = None,
        counts: bool = False,
    ) -> list[list[Trial]]:
        """Try each task ``num_samples`` times; return the trials of each task, in the tasks' order.

        A task that cannot be tried (the engine refuses its prompt, its grader is not there any
        more) yields no trials and is logged; it takes no other with it. What a stage of a cycle
        has sampled before its service ended is returned as it was recorded, and not sampled again.

        Args:
            tasks: what to try.
            adapter: the weights to sample from.
            num_samples: tries a task.
            sampling: overrides the task's own sampling parameters.
            stage: where in a learning cycle this belongs.
            counts: whether the tasks count as practised.

        Raises:
            EngineUnavailableError: the engine went away.
            NotFoundError, AdapterError: there are no such weights.
            CycleStoppedError: the stage has sampled other tasks before.
        """
        if stage is not None and any(trials := await self._recorded(stage, tasks)):
            return trials
        gate = asyncio.Semaphore(self._max_in_flight)

        async def one(task: TaskSpec) -> list[Trial]:
            async with gate:
                try:
                    grader = self._grader_of(task)
                    calls = await self._sample(
                        adapter=adapter,
                        messages=task.messages,
                        sampling={**task.sampling, **sampling, **_seed(stage, task, sampling)},
                        num_samples=num_samples,
                    )
                except DenizenError as error:
                    if error.status >= 500 or isinstance(error, NOT_ABOUT_THE_TASK):
                        raise
                    log.warning("task %s cannot be practised: %s", task.id, error)
                    return []
                return [await self._graded(task, call, grader) for call in calls]

        tried = await asyncio.gather(*(one(task) for task in tasks))
        await self._record(tried, stage, counts=counts)
        # What is learned from is what is recorded: the same to the last bit, whether it was read by
        # this service or by the next, and without what was erased meanwhile.
        return tried if stage is None else await self._recorded(stage, tasks)

    async def score(
        self, tasks: Sequence[TaskSpec], *, adapter: str, stage: CycleStage | None = None
    ) -> dict[str, float | None]:
        """Return each task's score when it is answered once, greedily; None where it has none."""
        tried = await self.practise(
            tasks, adapter=adapter, num_samples=1, sampling=GREEDY, stage=stage
        )
        return {
            task.id: mean_reward(trials) if trials else None
            for task, trials in zip(tasks, tried, strict=True)
        }

    async def _graded(self, task: TaskSpec, call: Call, grader: Grader) -> Trial:
        message = call.message or {"role": "assistant", "content": ""}
        grade = await grader.grade(
            Answer(
                messages=task.messages,
                message=message,
                reference=task.reference,
                config=task.grader_config,
            )
        )
        outcome = merge([grade], trust=self._trust, skill_id=task.skill_id)
        return Trial(task=task, call=call, grade=grade, outcome=outcome)

    async def _record(
        self, tried: Sequence[Sequence[Trial]], stage: CycleStage | None, *, counts: bool
    ) -> None:
        await self._store.practice.record(
            await asyncio.to_thread(self._kept, tried, stage),
            stage=stage,
            mean_rewards={
                trials[0].task.id: mean_reward(trials) for trials in tried if trials and counts
            },
        )

    def _kept(
        self, tried: Sequence[Sequence[Trial]], stage: CycleStage | None
    ) -> list[list[Practised]]:
        """Return what of trials may be recorded."""
        kept: list[list[Practised]] = []
        for trials in tried:
            kept.append([])
            for trial in trials:
                episode, [call] = self._privacy.kept(_episode(trial, stage), [trial.call])
                kept[-1].append((episode, call, self._privacy.grade(trial.grade), trial.outcome))
        return kept

    async def _recorded(self, stage: CycleStage, tasks: Sequence[TaskSpec]) -> list[list[Trial]]:
        """Return the trials of a stage as they are recorded, those of each task."""
        found = await asyncio.to_thread(self._store.practice.of_stage, stage)
        if len(found) > len(tasks):
            raise CycleStoppedError(f"{stage.name} has sampled more than {len(tasks)} tasks")
        found += [[] for _ in range(len(found), len(tasks))]
        return [
            [_trial(task, practised) for practised in tried]
            for task, tried in zip(tasks, found, strict=True)
        ]


def group_of(trials: Sequence[Trial], *, group_id: str) -> RolloutGroup:
    """Return the trials of one task as a group to learn from."""
    task = trials[0].task
    return RolloutGroup(
        id=group_id,
        task_id=task.id,
        skill_id=task.skill_id,
        rollouts=[rollout_of(trial.call, trial.grade, trial.outcome) for trial in trials],
    )


def rollout_of(call: Call, grade: Grade, outcome: Outcome) -> Rollout:
    """Return a graded call as a rollout."""
    return Rollout(
        prompt_token_ids=call.prompt_token_ids or (),
        completion_token_ids=call.completion_token_ids or (),
        sampler_logprobs=call.sampler_logprobs,
        reward=outcome.value,
        is_advisory=is_advisory([grade], outcome),
        finish_reason=call.finish_reason,
        is_withheld=call.withheld is not None,
    )


def mean_reward(trials: Sequence[Trial]) -> float | None:
    """Return the mean of what could be scored, or None when nothing could."""
    values = [trial.outcome.value for trial in trials if trial.outcome.value is not None]
    return sum(values) / len(values) if values else None


def _seed(stage: CycleStage | None, task: TaskSpec, sampling: Mapping[str, Any]) -> dict[str, int]:
    """Return the seed of a request, so that sampling a stage again finds the same answers.

    The engine adds a choice's index to it. Greedy answers need none.
    """
    if stage is None or not sampling.get("temperature"):
        return {}
    return {"seed": seed_of(stage, task.id)}


def seed_of(stage: CycleStage, name: str) -> int:
    """Return the seed of what a stage samples under a name, in 30 bits."""
    named = f"{stage.cycle_id}/{stage.name}/{name}"
    return int(hashlib.sha256(named.encode()).hexdigest()[:8], 16) >> 2


def _trial(task: TaskSpec, practised: Practised) -> Trial:
    episode, call, grade, outcome = practised
    if episode.task_id != task.id:
        raise CycleStoppedError(
            f"the cycle has sampled {episode.task_id} where it would sample {task.id} now"
        )
    return Trial(task=task, call=call, grade=grade, outcome=outcome)


def _episode(trial: Trial, stage: CycleStage | None) -> Episode:
    return Episode(
        id=trial.call.episode_id,
        created_at=trial.call.created_at,
        source=EpisodeSource.PRACTICE,
        task_text=trial.task.text,
        reference=trial.task.reference,
        grader=trial.task.grader,
        tenant=trial.task.tenant,
        skill_id=trial.task.skill_id,
        task_id=trial.task.id,
        cycle_id=None if stage is None else stage.cycle_id,
        digested_revision=1,
    )
