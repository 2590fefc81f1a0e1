"""What recorded episodes may teach: each with its advantage, on its side of the wall, or left out.

The outcome of each is compared with what its neighbours led to expect (``live_baseline``).
Everything that is known of an episode but not trained on is counted with the reason. It reads
nothing and writes nothing.
"""

import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from learner import live_baseline
from learner.advantages import MIN_SPREAD
from learner.curriculum import LearnerConfig
from learner.live_baseline import Floats
from learner.rows import SkipReason
from learner.staleness import staleness
from memory.graded_episodes import GradedEpisode
from memory.neighbours import GradedNeighbour
from memory.prefix_episodes import PrefixEpisode
from memory.types import fraction_of


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
        unexplained_share=0.71, unexplained_share_by_skill={2: 0.71},
        ages_by_skill={2: {0: 40, 3: 12, 8: 3}})``
    """

    train: Sequence[Weighed] = ()  # by id
    heldout: Sequence[Weighed] = ()  # never trained on
    num_graded: int = 0
    skipped: Mapping[SkipReason, int] = field(default_factory=dict)
    unexplained_share: float | None = None  # of the outcomes' variance; see ``live_baseline``
    unexplained_share_by_skill: Mapping[int, float | None] = field(default_factory=dict)
    # Episodes that teach or are too old to, by how many versions old; None: nobody knows.
    ages_by_skill: Mapping[int, Mapping[int | None, int]] = field(default_factory=dict)

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
            "ages_by_skill": {
                str(skill): {"unknown" if age is None else str(age): n for age, n in ages.items()}
                for skill, ages in self.ages_by_skill.items()
            },
        }


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
    sieve = _Sieve(
        trained=trained,
        taught=taught,
        heldout_questions=heldout_questions,
        lacking=_lacking(episodes, config),
        config=config,
    )
    weighed = [
        Weighed(episode=one, advantage=advantage)
        for one, advantage in zip(episodes, advantages.tolist(), strict=True)
    ]
    reasons = [sieve.reason(one) for one in weighed]
    told = list(zip(weighed, reasons, strict=True))
    of_skill = {skill: np.array(skills) == skill for skill in dict.fromkeys(skills)}
    values = np.array(outcomes)
    return LiveRecord(
        train=tuple(one for one, reason in told if reason is None),
        heldout=tuple(one for one, reason in told if sieve.proves(one, reason)),
        num_graded=len(episodes),
        skipped=Counter(
            reason for one, reason in told if reason is not None and not sieve.proves(one, reason)
        ),
        unexplained_share=live_baseline.unexplained_share(outcomes, expected, plain),
        unexplained_share_by_skill={
            skill: live_baseline.unexplained_share(values[own], expected[own], plain[own])
            for skill, own in of_skill.items()
        },
        ages_by_skill=_ages_by_skill(told, trained),
    )


def is_heldout(episode: GradedEpisode | PrefixEpisode, *, share: float) -> bool:
    """Put an episode on one side of the wall, with all others of its session, for ever."""
    name = episode.session if episode.session is not None else episode.id
    return fraction_of(name) < share


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sieve:
    """Tells which episodes teach and which prove; what it holds, ``weigh`` was told."""

    trained: str
    taught: Collection[str]
    heldout_questions: Collection[str]
    lacking: Mapping[int, SkipReason]  # by skill: why none of its episodes teaches
    config: LearnerConfig

    def reason(self, weighed: Weighed) -> SkipReason | None:
        """Say why an episode is not trained on, or None when it is."""
        one, config = weighed.episode, self.config
        age = staleness(one.samplers, self.trained)
        reasons = (
            (SkipReason.REPLAYABLE, one.is_replayable),
            (self.lacking.get(one.skill_id), one.skill_id in self.lacking),
            (SkipReason.HELDOUT, words(one.text) in self.heldout_questions),
            (SkipReason.HELDOUT, is_heldout(one, share=config.live_heldout_share)),
            (SkipReason.TAUGHT, one.id in self.taught),
            (SkipReason.STALE, age is None or age > config.max_staleness),
            (SkipReason.ZERO_SIGNAL, weighed.advantage == 0.0),
        )
        return next((reason for reason, holds in reasons if holds), None)

    def proves(self, weighed: Weighed, reason: SkipReason | None) -> bool:
        """Say whether a candidate is tried on it: held out, and not for what a task asks."""
        is_asked = words(weighed.episode.text) in self.heldout_questions
        return reason is SkipReason.HELDOUT and not is_asked


def _ages_by_skill(
    told: Sequence[tuple[Weighed, SkipReason | None]], trained: str
) -> dict[int, Counter[int | None]]:
    """Count what teaches or is too old to: so that a limit that starves a skill shows."""
    ages: dict[int, Counter[int | None]] = defaultdict(Counter)
    for weighed, reason in told:
        if reason in (None, SkipReason.STALE):
            one = weighed.episode
            ages[one.skill_id][staleness(one.samplers, trained)] += 1
    return dict(ages)


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


def words(text: str) -> str:
    """Return a text as single words, by which equal questions are equal."""
    return " ".join(text.split())
