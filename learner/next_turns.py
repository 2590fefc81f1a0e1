"""Next-turn practice: a turn of recorded work is taken again, G times, and the answers are ranked.

An environment that cannot be replayed still leaves prefixes: the exact prompt of each recorded
call. There the weights that are trained sample alternatives to the turn that was taken, and a judge
that sees what happened next in the record orders them together; their places are the rewards of a
group like any other. Alternatives end with the turn: nobody knows what the world would have
answered.

What this does not know: whether an alternative that ranks high would have led the work to a better
end. The judge infers that from what the recorded turn led to, which tells the more the nearer the
alternatives are to it. So the rewards teach where the judge is trusted (``graders/trust.py``), and
whether the candidate is better is for ``live_proof`` or held-out tasks to say, on work that taught
nothing.
"""

import asyncio
import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from graders.outcome import Trust, merge
from graders.types import Answer
from learner.curriculum import LearnerConfig
from learner.prefixes import Chosen, Prefix, Prefixes
from learner.rollouts import NOT_ABOUT_THE_TASK, rollout_of, seed_of
from learner.rows import RolloutGroup, rows_of
from learner.sources import FULL_DISTRIBUTION, Gathered, StepPlan
from memory.errors import DenizenError
from memory.practice_store import Practised
from memory.store import Store
from memory.types import Call, Episode, EpisodeSource, Grade, Message

log = logging.getLogger(__name__)
PART = "next-turns"
MAX_IN_FLIGHT = 4
MIN_TOKENS = 64
"""What an alternative may take at least, however short the recorded turn was."""


class SampleTurnFn(Protocol):
    """Samples what follows given token ids."""

    async def __call__(
        self,
        *,
        adapter: str,
        prompt_token_ids: Sequence[int],
        request: Mapping[str, Any],
        sampling: Mapping[str, Any],
        num_samples: int,
    ) -> list[Call]:
        """Return the completions, each as a call in an episode of its own."""


class Ranker(Protocol):
    """Orders the answers of one group."""

    @property
    def name(self) -> str:
        """Name the judge, as its grades do."""

    @property
    def version(self) -> str:
        """Name all that its grades depend on."""

    async def rank(self, answers: Sequence[Answer], *, followed: str | None = None) -> list[Grade]:
        """Return a grade for each answer, in their order; see ``graders/ranking.py``."""


class NextTurns:
    """Rows of turns that are taken again; a source of an optimizer step's rows.

    Args:
        store: the record.
        sample: takes turns.
        ranker_of: who orders a skill's answers.
        why_not_now: why the judge may not be asked just now; None: it may.
        trust: which judges may teach.
        config: how many prefixes a step has, and how many alternatives each.
    """

    def __init__(
        self,
        store: Store,
        *,
        sample: SampleTurnFn,
        ranker_of: Callable[[int], Ranker],
        why_not_now: Callable[[], str | None],
        trust: Trust,
        config: LearnerConfig,
    ) -> None:
        self._store = store
        self._sample = sample
        self._ranker_of = ranker_of
        self._why_not_now = why_not_now
        self._trust = trust
        self._config = config
        self._prefixes = Prefixes(store, config)
        self._gate = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def gather(self, plan: StepPlan) -> Gathered:
        """Take the turns of the step's prefixes again, and compare the alternatives at each.

        What the step has sampled before its service ended is taken as it was recorded.

        Raises:
            EngineUnavailableError: the engine went away.
            NotFoundError, AdapterError: there are no such weights.
        """
        plan = dataclasses.replace(plan, part=PART)
        cycle = await asyncio.to_thread(self._store.cycles.get, plan.cycle_id)
        doubted = await asyncio.to_thread(self._doubted, cycle.skill_ids)
        chosen = await asyncio.to_thread(self._prefixes.choose, cycle, plan, doubted)
        tried = await self._recorded(plan)
        why_not = None
        if not tried and chosen.prefixes and (why_not := self._why_not_now()) is None:
            tries = await asyncio.gather(*(self._try(one, plan) for one in chosen.prefixes))
            await self._store.practice.record(tries, stage=plan.stage)
            # As in practice: what is learned from is what is recorded, without what was erased.
            tried = await self._recorded(plan)
        return self._gathered(plan, tried, chosen, why_not)

    def _doubted(self, skill_ids: Sequence[int]) -> dict[int, str]:
        """Return the skills where a ranking would not be trained on: none is asked for there."""
        merged = self._store.judge_evidence.merged_skills()
        doubts = {}
        for skill_id in {merged.get(one, one) for one in skill_ids}:
            ranker = self._ranker_of(skill_id)
            doubt = self._trust.doubt(ranker.name, ranker.version, skill_id)
            if doubt is not None:
                doubts[skill_id] = doubt
        return doubts

    async def _recorded(self, plan: StepPlan) -> list[list[Practised]]:
        found = await asyncio.to_thread(self._store.practice.of_stage, plan.stage)
        return [group for group in found if group]

    async def _try(self, prefix: Prefix, plan: StepPlan) -> list[Practised]:
        """Sample alternatives to one turn and rank them; none where the engine refuses."""
        async with self._gate:
            try:
                calls = await self._sample(
                    adapter=plan.adapter,
                    prompt_token_ids=prefix.call.prompt_token_ids or (),
                    request=_asked(prefix.call),
                    sampling=self._sampling(prefix.call, plan),
                    num_samples=self._config.next_turn_group_size,
                )
            except DenizenError as error:
                if error.status >= 500 or isinstance(error, NOT_ABOUT_THE_TASK):
                    raise
                log.warning("call %s cannot be taken again: %s", prefix.call.id, error)
                return []
            ranker = await asyncio.to_thread(self._ranker_of, prefix.episode.skill_id)
            shown = _shown(prefix.call)
            answers = [Answer(messages=shown, message=call.message or {}) for call in calls]
            grades = await ranker.rank(answers, followed=prefix.turn.followed)
        return [
            self._practised(prefix, plan, call, grade)
            for call, grade in zip(calls, grades, strict=True)
        ]

    def _sampling(self, call: Call, plan: StepPlan) -> dict[str, Any]:
        """Return how alternatives are drawn: as practice is, where the recorded call would stop."""
        request, config = call.request, self._config
        room = config.max_row_tokens - len(call.prompt_token_ids or ())
        limits = [room, max(2 * len(call.completion_token_ids or ()), MIN_TOKENS)]
        asked = request.get("max_completion_tokens") or request.get("max_tokens")
        limits += [asked] if asked else []
        given = {"stop": request["stop"]} if request.get("stop") else {}
        seed = seed_of(plan.stage, call.id)
        drawn = {"temperature": config.temperature, **FULL_DISTRIBUTION, "seed": seed}
        return {**given, **drawn, "max_tokens": min(limits)}

    def _practised(self, prefix: Prefix, plan: StepPlan, call: Call, grade: Grade) -> Practised:
        its = prefix.episode
        episode = Episode(
            id=call.episode_id,
            created_at=call.created_at,
            source=EpisodeSource.PRACTICE,
            task_text=its.text,
            tenant=its.tenant,
            skill_id=its.skill_id,
            task_id=its.id,  # by which an erasure finds what holds the episode's words
            cycle_id=plan.cycle_id,
            digested_revision=1,
        )
        told = {"taken_again": prefix.call.id, "followed_characters": len(prefix.turn.followed)}
        grade = dataclasses.replace(grade, evidence={**grade.evidence, **told})
        return episode, call, grade, merge([grade], trust=self._trust, skill_id=its.skill_id)

    def _gathered(
        self,
        plan: StepPlan,
        tried: Sequence[Sequence[Practised]],
        chosen: Chosen,
        why_not: str | None,
    ) -> Gathered:
        groups = [_group(group, plan.group_id(i)) for i, group in enumerate(tried)]
        config = self._config
        batch = rows_of(groups, baseline=config.baseline, normalize_std=config.normalize_std)
        taught = {row.group_id for row in batch.rows}
        episode_ids = {
            id
            for group, practised in zip(groups, tried, strict=True)
            if group.id in taught
            for episode, *_ in practised
            for id in (episode.id, group.task_id)
        }
        unscored = Counter(
            str(grade.unscored_reason)
            for practised in tried
            for _, _, grade, _ in practised
            if grade.value is None
        )
        account = chosen.to_json() | {"num_tried": len(tried), "why_not": why_not}
        account["unscored"] = dict(unscored)
        return Gathered(
            batch=batch,
            episode_ids=frozenset(episode_ids),
            receipt={"next_turn_rows": len(batch.rows), "next_turns": account},
            is_over=chosen.is_over and not tried,
        )


def _group(practised: Sequence[Practised], group_id: str) -> RolloutGroup:
    """Return the alternatives at one prefix as a group to learn from."""
    episode = practised[0][0]
    return RolloutGroup(
        id=group_id,
        task_id=episode.task_id or "",
        skill_id=episode.skill_id,
        rollouts=[rollout_of(call, grade, outcome) for _, call, grade, outcome in practised],
    )


def _asked(call: Call) -> dict[str, Any]:
    """Return what of a recorded request the alternatives to its answer keep."""
    return {name: call.request[name] for name in ("messages", "tools") if call.request.get(name)}


def _shown(call: Call) -> list[Message]:
    """Return the prefix as a judge is shown it: what could be called, and what was said."""
    shown: list[Message] = [*call.request["messages"]]
    if tools := call.request.get("tools"):
        shown.insert(0, {"role": "tools that may be called", "content": tools})
    return shown
