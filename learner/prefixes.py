"""Recorded prefixes: which turns of work that cannot be replayed are taken again in a step.

The steps of a cycle walk through the newest episodes, in an order that is fixed in the cycle, and
take one turn of each, so that prefixes spread over work. What is passed over is counted with the
reason. It does not know how a turn is taken or compared.
"""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from learner.curriculum import LearnerConfig
from learner.live_groups import proven_skills
from learner.live_record import is_heldout, words
from learner.rows import SkipReason
from learner.sequels import Turn, turns_of
from learner.sources import StepPlan
from memory.errors import NotFoundError
from memory.prefix_episodes import PrefixEpisode
from memory.store import Store
from memory.types import Call, Cycle, Split

MAX_EPISODES = 128
"""The newest that a cycle looks at: at four prefixes a step more than twelve steps need."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """A recorded turn that is taken again: its call, tokens included, and what came of it."""

    episode: PrefixEpisode
    turn: Turn

    @property
    def call(self) -> Call:
        """The recorded call; its prompt is the prefix."""
        return self.turn.call


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The prefixes of one step."""

    prefixes: Sequence[Prefix] = ()
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)  # episodes it passed over
    num_episodes: int = 0  # that the steps of the cycle may look at
    left_out: Mapping[SkipReason, int] = field(default_factory=dict)  # that none of them does
    is_over: bool = False  # neither this step nor a later one has an episode left

    def to_json(self) -> dict[str, Any]:
        """Return the account of it."""
        return {
            "num_episodes": self.num_episodes,
            "num_prefixes": len(self.prefixes),
            "skipped": {reason.value: num for reason, num in self.skipped.items()},
            "left_out": {reason.value: num for reason, num in self.left_out.items()},
        }


class Prefixes:
    """Chooses prefixes from the record."""

    def __init__(self, store: Store, config: LearnerConfig) -> None:
        self._store = store
        self._config = config

    def choose(self, cycle: Cycle, plan: StepPlan, doubted: Mapping[int, str]) -> Chosen:
        """Return a step's prefixes, the same whoever asks; reads, so call it off the event loop.

        Args:
            cycle: whose skills teach, where held-out work of them proves it.
            plan: the step.
            doubted: skills whose rankings would not be trained on, and why.
        """
        left_out, episodes = self._episodes(cycle, doubted)
        num = self._config.next_turns_per_step
        num_earlier = (plan.index - 1) * num  # that the steps before this one have taken
        found: list[Prefix] = []
        skipped: Counter[SkipReason] = Counter()
        for episode in episodes:
            if len(found) == num_earlier + num:
                break
            one = self._prefix(episode)
            if isinstance(one, Prefix):
                found.append(one)
            elif len(found) >= num_earlier:
                skipped[one] += 1
        return Chosen(
            prefixes=tuple(found[num_earlier:]),
            skipped=skipped,
            num_episodes=len(episodes),
            left_out=left_out,
            is_over=len(found) <= num_earlier,
        )

    def _episodes(
        self, cycle: Cycle, doubted: Mapping[int, str]
    ) -> tuple[Counter[SkipReason], list[PrefixEpisode]]:
        """Return the episodes that may teach, in this cycle's order, and why others may not."""
        store, share = self._store, self._config.live_heldout_share
        skills = sorted(proven_skills(store, cycle))
        heldout_tasks = store.tasks.of_skills(cycle.skill_ids, Split.HELDOUT)
        heldout_questions = {words(task.text) for task in heldout_tasks}
        left_out: Counter[SkipReason] = Counter()
        kept = []
        for one in store.prefixes.newest(skills, until=cycle.created_at, limit=MAX_EPISODES):
            if is_heldout(one, share=share) or words(one.text) in heldout_questions:
                left_out[SkipReason.HELDOUT] += 1
            elif one.skill_id in doubted:
                left_out[SkipReason.ADVISORY] += 1
            else:
                kept.append(one)
        return left_out, sorted(kept, key=lambda one: _place(cycle.id, one.id))

    def _prefix(self, episode: PrefixEpisode) -> Prefix | SkipReason:
        """Return one turn of an episode, or why there is none."""
        episodes, limit = self._store.episodes, self._config.max_row_tokens
        try:
            turns = turns_of(
                episodes.call_texts(episode.id),
                episodes.outcome(episode.id),
                episodes.feedback(episode.id),
            )
            if not turns:
                return SkipReason.NO_SEQUEL
            fitting = [turn for turn in turns if _num_tokens(turn.call) <= limit]
            if not fitting:
                return SkipReason.TOO_LONG
            turn = min(fitting, key=lambda one: _place(episode.id, one.call.id))
            call = episodes.call(turn.call.id)
        except NotFoundError:  # erased meanwhile
            return SkipReason.UNTRAINABLE
        if not call.prompt_token_ids or not call.completion_token_ids:
            return SkipReason.NO_PROMPT
        if len(call.prompt_token_ids) + len(call.completion_token_ids) > limit:
            return SkipReason.TOO_LONG
        return Prefix(episode=episode, turn=dataclasses.replace(turn, call=call))


def _num_tokens(call: Call) -> int:
    """Return how many tokens a call has, as the engine counted; 0 where it did not say."""
    usage = call.usage or {}
    return sum(usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens"))


def _place(*names: str) -> bytes:
    return hashlib.sha256("/".join(names).encode()).digest()
