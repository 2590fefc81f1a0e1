"""Live groups: recorded episodes of work that cannot be tried again, one rollout a task.

The outcome of each is compared with what its neighbours led to expect (``live_baseline``), and its
recorded tokens are trained with the difference. Everything that is known of an episode but not
trained on is counted with the reason. It does not know how episodes are graded or rows trained.
"""

import asyncio
import dataclasses
import hashlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import numpy as np

from learner import live_baseline
from learner.advantages import MIN_SPREAD
from learner.curriculum import LearnerConfig
from learner.live_baseline import Floats
from learner.rows import RowBatch, SkipReason, TrainingRow
from learner.sources import Gathered, StepPlan
from learner.staleness import staleness
from learner.trees import rows_of_tree
from memory.graded_episodes import GradedEpisode
from memory.neighbours import GradedNeighbour
from memory.store import Store
from memory.types import Call, Cycle, Split, TaskRole

NEIGHBOURS = 16
"""How many near episodes a baseline rests on, besides its skill's mean. On synthetic tasks in 16
dimensions 16 left the least variance of 4, 8, 16 and 32 where 32 to 64 episodes are known, and
nearly the least where 256 are."""
MAX_EPISODES = 512
"""The newest that a cycle looks at; their baselines take under a second."""


class FindsNeighbours(Protocol):
    """Finds the graded episodes most like others."""

    def nearest(
        self, episode_ids: Sequence[str], *, until: datetime, limit: int
    ) -> Mapping[str, Sequence[GradedNeighbour]]:
        """Return for each episode its nearest of the same skill and of other sessions.

        None that began after ``until``.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Weighed:
    """An episode and by how much its outcome exceeds what was to be expected.

    Example:
        ``Weighed(episode=GradedEpisode(id="ep_0193-5c", …), advantage=0.62)``
    """

    episode: GradedEpisode
    advantage: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveRecord:
    """What a cycle's skills have done, as it may teach.

    Example:
        ``LiveRecord(train=(…,), heldout=(…,), num_graded=64, skipped={SkipReason.STALE: 3},
        unexplained_share=0.71, unexplained_share_by_skill={2: 0.71})``
    """

    train: Sequence[Weighed] = ()  # by id
    heldout: Sequence[Weighed] = ()  # never trained on
    num_graded: int = 0
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)
    unexplained_share: float | None = None  # of the outcomes' variance; see ``live_baseline``
    unexplained_share_by_skill: Mapping[int, float | None] = field(default_factory=dict)

    @property
    def skill_ids(self) -> frozenset[int]:
        """The skills that have something to train on."""
        return frozenset(one.episode.skill_id for one in self.train)

    @property
    def why_nothing(self) -> str:
        """Say why there is nothing to train on."""
        skipped = ", ".join(f"{num} {reason}" for reason, num in self.skipped.items() if num)
        left = f"; left out: {skipped}" if skipped else ""
        return f"none of {self.num_graded} recorded episodes can teach{left}"

    def to_json(self) -> dict[str, Any]:
        """Return the account of it."""
        outcomes = [one.episode.outcome for one in self.train]
        return {
            "num_graded": self.num_graded,
            "num_train": len(self.train),
            "num_heldout": len(self.heldout),
            "skipped": {reason.value: num for reason, num in self.skipped.items() if num},
            "reward_mean": statistics.fmean(outcomes) if outcomes else None,
            "unexplained_share": self.unexplained_share,
            "unexplained_share_by_skill": {
                str(skill): share for skill, share in self.unexplained_share_by_skill.items()
            },
        }


class LiveGroups:
    """Rows of recorded episodes; a source of an optimizer step's rows."""

    def __init__(self, store: Store, neighbours: FindsNeighbours, config: LearnerConfig) -> None:
        self._store = store
        self._neighbours = neighbours
        self._config = config

    def record(self, cycle: Cycle) -> LiveRecord:
        """Return what may teach in a cycle; takes up to a second, call it off the event loop.

        Where held-out tasks prove a cycle, only skills that have some among them teach: what
        another one's episodes did would go unseen.
        """
        graded = self._store.graded
        proving = self._store.cycles.tasks(cycle.id).get(TaskRole.HELDOUT, [])
        skill_ids = {task.skill_id for task in proving if task.skill_id} or cycle.skill_ids
        until = cycle.created_at
        episodes = graded.newest(sorted(skill_ids), until=until, limit=MAX_EPISODES)
        ids = [one.id for one in episodes]
        heldout_tasks = self._store.tasks.of_skills(cycle.skill_ids, Split.HELDOUT)
        found = weigh(
            episodes,
            self._neighbours.nearest(ids, until=until, limit=NEIGHBOURS),
            trained=cycle.start_version,
            taught=graded.taught(cycle.start_version),
            heldout_questions={_words(task.text) for task in heldout_tasks},
            config=self._config,
        )
        advisory = Counter({SkipReason.ADVISORY: graded.num_advisory(sorted(skill_ids))})
        return dataclasses.replace(found, skipped=Counter(found.skipped) + advisory)

    async def gather(self, plan: StepPlan) -> Gathered:
        """Return the rows of the step's share of the episodes; none once all had their turns."""
        cycle = self._store.cycles.get(plan.cycle_id)
        return await asyncio.to_thread(self._gather, cycle, plan)

    def rows_of(self, weighed: Weighed) -> tuple[TrainingRow, ...] | SkipReason:
        """Return an episode's rows, each sampled token once, or why there are none."""
        return self._rows(weighed, self._store.episodes.calls(weighed.episode.id))

    def _rows(
        self, weighed: Weighed, calls: Sequence[Call]
    ) -> tuple[TrainingRow, ...] | SkipReason:
        group_id = f"live-{weighed.episode.id}"
        rows = rows_of_tree(calls, group_id=group_id, advantage=weighed.advantage).rows
        if not rows:
            return SkipReason.UNTRAINABLE
        if any(len(row.token_ids) > self._config.max_row_tokens for row in rows):
            return SkipReason.TOO_LONG
        return rows

    def _gather(self, cycle: Cycle, plan: StepPlan) -> Gathered:
        record = self.record(cycle)
        turns = turns_of(record.train, plan, self._config)
        rows: list[TrainingRow] = []
        skipped: Counter[SkipReason] = Counter()
        taught: set[str] = set()
        num_truncated = 0
        skills: dict[int, bool] = defaultdict(bool)  # whether it has a row
        for one in turns:
            calls = self._store.episodes.calls(one.episode.id)
            found = self._rows(one, calls)
            skills[one.episode.skill_id] |= not isinstance(found, SkipReason)
            if isinstance(found, SkipReason):
                skipped[found] += 1
                continue
            rows += found
            num_truncated += any(call.finish_reason == "length" for call in calls)
            taught.add(one.episode.id)
        batch = RowBatch(
            rows=tuple(rows),
            num_groups=len(skills),
            num_rollouts=len(turns),
            num_trained_groups=sum(skills.values()),
            num_truncated=num_truncated,
            skipped_rollouts=dict(skipped),
        )
        receipt = {"live_rows": len(rows), "live": record.to_json()}
        return Gathered(
            batch=batch, episode_ids=frozenset(taught), receipt=receipt, is_over=not turns
        )


def weigh(
    episodes: Sequence[GradedEpisode],
    neighbours: Mapping[str, Sequence[GradedNeighbour]],
    *,
    trained: str,
    taught: Collection[str],
    heldout_questions: Collection[str],
    config: LearnerConfig,
) -> LiveRecord:
    """Compare episodes with each other, and say which may teach, which prove, and which neither.

    All of them inform the baselines. A skill teaches when ``min_live_episodes`` of its episodes
    cannot be replayed and their outcomes differ.

    Args:
        episodes: graded ones of the skills that learn.
        neighbours: of each episode, by id.
        trained: the version that is continued.
        taught: ids of episodes that it has learned from already; it need not learn them again.
        heldout_questions: what held-out tasks ask, in single words; see ``heldout_share``.
        config: settings of learning.
    """
    sessions = [one.session for one in episodes]
    if len(episodes) < 2 or (None not in sessions and len(set(sessions)) == 1):
        skipped = {SkipReason.TOO_FEW: len(episodes)}
        return LiveRecord(num_graded=len(episodes), skipped=skipped)
    outcomes, skills = [one.outcome for one in episodes], [one.skill_id for one in episodes]
    expected = live_baseline.baselines(
        outcomes, _distances(episodes, neighbours), skills_N=skills, sessions_N=sessions
    )
    plain = live_baseline.overall_means(outcomes, sessions_N=sessions)
    advantages = live_baseline.advantages(outcomes, expected, skills_N=skills)
    lacking = _lacking(episodes, config)
    train, heldout = [], []
    skipped_by: Counter[SkipReason] = Counter()
    for one, advantage in zip(episodes, advantages.tolist(), strict=True):
        reason = _reason(one, advantage, lacking, trained, taught, heldout_questions, config)
        if reason is None:
            train.append(Weighed(episode=one, advantage=advantage))
        elif reason is SkipReason.HELDOUT and _words(one.text) not in heldout_questions:
            heldout.append(Weighed(episode=one, advantage=advantage))
        else:
            skipped_by[reason] += 1
    of_skill = {skill: np.array(skills) == skill for skill in dict.fromkeys(skills)}
    values = np.array(outcomes)
    return LiveRecord(
        train=tuple(train),
        heldout=tuple(heldout),
        num_graded=len(episodes),
        skipped=dict(skipped_by),
        unexplained_share=live_baseline.unexplained_share(outcomes, expected, plain),
        unexplained_share_by_skill={
            skill: live_baseline.unexplained_share(values[own], expected[own], plain[own])
            for skill, own in of_skill.items()
        },
    )


def turns_of(train: Sequence[Weighed], plan: StepPlan, config: LearnerConfig) -> Sequence[Weighed]:
    """Return the episodes whose turn it is in a step: in a fixed order, ``live_epochs`` times each.

    The order is another one in each cycle, and the same whoever asks.
    """

    def place(one: Weighed) -> bytes:
        return hashlib.sha256(f"{plan.cycle_id}/{one.episode.id}".encode()).digest()

    order = sorted(train, key=place)
    # No episode twice in one step, however few there are.
    num = min(config.live_episodes_per_step, len(order))
    start = (plan.index - 1) * num
    end = min(start + num, config.live_epochs * len(order))
    return [order[turn % len(order)] for turn in range(start, end)]


def is_heldout(episode: GradedEpisode, *, share: float) -> bool:
    """Put an episode on one side of the wall, with all others of its session, for ever."""
    name = episode.session if episode.session is not None else episode.id
    fraction = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 0x1_0000_0000
    return fraction < share


def _reason(
    one: GradedEpisode,
    advantage: float,
    lacking: Mapping[int, SkipReason],
    trained: str,
    taught: Collection[str],
    heldout_questions: Collection[str],
    config: LearnerConfig,
) -> SkipReason | None:
    """Say why an episode is not trained on, or None when it is."""
    age = staleness(one.samplers, trained)
    reasons = (
        (SkipReason.REPLAYABLE, one.is_replayable),
        (lacking.get(one.skill_id), one.skill_id in lacking),
        (SkipReason.HELDOUT, _words(one.text) in heldout_questions),
        (SkipReason.HELDOUT, is_heldout(one, share=config.live_heldout_share)),
        (SkipReason.TAUGHT, one.id in taught),
        (SkipReason.STALE, age is None or age > config.max_staleness),
        (SkipReason.ZERO_SIGNAL, advantage == 0.0),
    )
    return next((reason for reason, holds in reasons if holds), None)


def _lacking(episodes: Sequence[GradedEpisode], config: LearnerConfig) -> dict[int, SkipReason]:
    """Return the skills that have too few episodes of their own, or no contrast, and why."""
    outcomes: dict[int, list[float]] = defaultdict(list)
    for one in episodes:
        outcomes[one.skill_id] += [] if one.is_replayable else [one.outcome]
    lacking = {}
    for skill, values in outcomes.items():
        if len(values) < config.min_live_episodes:
            lacking[skill] = SkipReason.TOO_FEW
        elif max(values) - min(values) <= MIN_SPREAD:
            lacking[skill] = SkipReason.ZERO_SIGNAL
    return lacking


def _distances(
    episodes: Sequence[GradedEpisode], neighbours: Mapping[str, Sequence[GradedNeighbour]]
) -> Floats:
    """Return [N, N], how far each is from its neighbours; infinite from all others."""
    places = {one.id: place for place, one in enumerate(episodes)}
    distances = np.full((len(episodes), len(episodes)), np.inf)
    for one in episodes:
        for near in neighbours.get(one.id, ()):
            if near.episode_id in places:
                distances[places[one.id], places[near.episode_id]] = max(near.distance, 0.0)
    return distances


def _words(text: str) -> str:
    return " ".join(text.split())
