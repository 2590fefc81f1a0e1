"""Measures a candidate's drift: from held-out answers that a cycle recorded, and by a probe."""

import asyncio
import logging
from collections.abc import Collection, Mapping

from learner.drift import AnswerDrift, Drift, DriftConfig, figures, kl_estimate
from learner.general_probe import GeneralProbe
from learner.live_proof import LogprobFn
from memory.errors import DenizenError, UnavailableError
from memory.store import Store
from memory.types import Call, Cycle, CycleStage

log = logging.getLogger(__name__)
MAX_ASKED = 16
"""Answers of a kind that the live version is asked about, for the KL."""


class DriftProof:
    """Compares a cycle's candidate with the version it started from."""

    def __init__(
        self, store: Store, logprobs: LogprobFn, probe: GeneralProbe, config: DriftConfig
    ) -> None:
        self._store = store
        self._logprobs = logprobs
        self._probe = probe
        self.config = config

    async def measure(self, cycle: Cycle, candidate: str, practised: Collection[str]) -> Drift:
        """Measure the drift; the held-out tasks have been answered by both versions.

        Args:
            cycle: whose stages ``before`` and ``after`` are recorded.
            candidate: its version.
            practised: the ids of the held-out tasks of practised skills.

        Raises:
            UnavailableError: the engine went away.
        """
        before = await asyncio.to_thread(self._answers, cycle, "before")
        after = await asyncio.to_thread(self._answers, cycle, "after")
        both = before.keys() & after.keys()
        mine = sorted(both & set(practised))
        others = sorted(both - set(practised))
        probe, why_no_probe = await self._probe.compare(cycle.start_version, candidate)
        return Drift(
            others=await self._of_answers(others, before, after, cycle.start_version),
            practised=await self._of_answers(mine, before, after, cycle.start_version),
            probe=probe,
            why_no_probe=why_no_probe,
        )

    def _answers(self, cycle: Cycle, name: str) -> dict[str, Call]:
        """Return a stage's answers whose tokens are known, by task."""
        stage = CycleStage(cycle_id=cycle.id, name=name)
        return {
            episode.task_id: call
            for tried in self._store.practice.of_stage(stage)
            for episode, call, _grade, _outcome in tried
            if episode.task_id is not None and call.completion_token_ids
        }

    async def _of_answers(
        self, task_ids: list[str], before: Mapping[str, Call], after: Mapping[str, Call], live: str
    ) -> AnswerDrift | None:
        if not task_ids:
            return None
        return AnswerDrift(
            before=figures([before[task_id] for task_id in task_ids]),
            after=figures([after[task_id] for task_id in task_ids]),
            kl=await self._kl([after[task_id] for task_id in task_ids[:MAX_ASKED]], live),
        )

    async def _kl(self, calls: list[Call], live: str) -> float | None:
        """Return how far the candidate's answers are from the live version, in nats a token."""
        own: list[float | None] = []
        theirs: list[float | None] = []
        for call in calls:
            if call.text_only_reason is not None:
                continue
            sampled = tuple(call.completion_token_ids or ())
            token_ids = (*(call.prompt_token_ids or ()), *sampled)
            try:
                told = await self._logprobs(adapter=live, token_ids=token_ids)
            except UnavailableError:
                raise
            except DenizenError as error:  # a candidate is not lost for a figure of it
                log.warning("call %s cannot be compared: %s", call.id, error)
                continue
            own += call.sampler_logprobs or ()
            theirs += told[-len(sampled) :]
        return kl_estimate(own, theirs)
