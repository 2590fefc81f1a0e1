"""Proof without replay: does a candidate make better recorded answers likelier than worse ones?

Work that cannot be tried again has no held-out tasks. What is left are recorded episodes that were
never trained on: the engine says how likely their sampled tokens are to the live version and to the
candidate. That shows a candidate going the right way on answers that were given; it does not show
that answers it would give now are better. So the verdict's best is a proposal to a person.

Axes: ``N`` held-out episodes.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from learner.gate import (
    GateConfig,
    GateReport,
    Verdict,
    bootstrap_interval,
    sign_flip_chances,
)
from learner.live_groups import LiveGroups
from learner.live_record import Weighed
from learner.rows import SkipReason
from memory.errors import DenizenError
from memory.types import Cycle

log = logging.getLogger(__name__)
MAX_IN_FLIGHT = 4
NOT_REPLAYABLE = "not replayable: a person decides"


class LogprobFn(Protocol):
    """Says how likely tokens are to named weights."""

    async def __call__(self, *, adapter: str, token_ids: Sequence[int]) -> Sequence[float | None]:
        """Return the log-probability of each token given those before it; None where unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveComparison:
    """How the log-probabilities of recorded answers moved, against how good these were.

    A gain is ``advantage * (change - mean change)`` of one episode, where change is the candidate's
    mean log-probability of its sampled tokens less the live version's, in nats a token.

    Example:
        ``LiveComparison(num_episodes=14, num_dropped=1, mean_change=0.02, mean_gain=0.011,
        gain_low=0.002, gain_high=0.021, chance_of_gain=0.004, chance_of_loss=0.997)``
    """

    num_episodes: int
    num_dropped: int  # whose tokens one of the two could not be asked about
    mean_change: float | None = None
    mean_gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    chance_of_gain: float | None = None
    chance_of_loss: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


def compare_changes(
    changes_N: npt.ArrayLike, advantages_N: npt.ArrayLike, *, num_dropped: int, config: GateConfig
) -> LiveComparison:
    """Sum up how the candidate moved recorded answers.

    What all answers gained alike says nothing of better and worse ones and is taken out first. The
    interval and the chances are the gate's, over episodes instead of tasks.

    Args:
        changes_N: candidate less live version, nats a token.
        advantages_N: outcome less what was expected.
        num_dropped: episodes that are not among them.
        config: how sure to be.
    """
    changes, advantages = (np.asarray(one, dtype=np.float64) for one in (changes_N, advantages_N))
    if not len(changes):
        return LiveComparison(num_episodes=0, num_dropped=num_dropped)
    gains = advantages * (changes - changes.mean())
    low, high = bootstrap_interval(
        gains, confidence=config.confidence, num_bootstrap=config.num_bootstrap, seed=config.seed
    )
    of_gain, of_loss = sign_flip_chances(
        gains, num_bootstrap=config.num_bootstrap, seed=config.seed
    )
    return LiveComparison(
        num_episodes=len(changes),
        num_dropped=num_dropped,
        mean_change=float(changes.mean()),
        mean_gain=float(gains.mean()),
        gain_low=low,
        gain_high=high,
        chance_of_gain=of_gain,
        chance_of_loss=of_loss,
    )


def judge(guards: GateReport, live: LiveComparison, config: GateConfig) -> GateReport:
    """Return the verdict on a candidate that learned from work that cannot be replayed.

    ``reject``: another skill's held-out tasks lost significantly, or worse recorded answers became
    likelier than better ones. ``inconclusive``: a skill fell by more than ``max_skill_loss``, or
    there are enough episodes to tell and they do not. Else ``promote``, for a person to follow or
    not; with too few episodes nothing but the other skills speaks for it, and the reason says so.

    Args:
        guards: the comparison on held-out tasks of other skills.
        live: the comparison on recorded episodes.
        config: how sure to be.
    """
    if guards.verdict is Verdict.REJECT:
        return guards
    told = _told(live, config)
    tail = (1.0 - config.confidence) / 2.0
    is_enough = live.num_episodes >= config.min_tasks
    if is_enough and _is_sure(live.gain_high, live.chance_of_loss, tail, sign=-1):
        return _with(guards, Verdict.REJECT, [f"worse recorded answers became likelier: {told}"])
    if falls := _falls(guards, config):
        return _with(guards, Verdict.INCONCLUSIVE, [*falls, told])
    if is_enough and not is_proven(live, config):
        reason = f"recorded answers do not tell: {told}"
        return _with(guards, Verdict.INCONCLUSIVE, [reason])
    num = guards.overall.num_tasks
    watch = f"{num} held-out tasks of other skills lost nothing" if num else "no other skill has "
    watch += "" if num else "held-out tasks, so none was watched"
    return _with(guards, Verdict.PROMOTE, [NOT_REPLAYABLE, told, watch])


def is_proven(live: LiveComparison, config: GateConfig) -> bool:
    """Say whether better recorded answers surely became likelier than worse ones."""
    tail = (1.0 - config.confidence) / 2.0
    is_enough = live.num_episodes >= config.min_tasks
    return is_enough and _is_sure(live.gain_low, live.chance_of_gain, tail, sign=1)


class LiveProof:
    """Compares two versions on recorded episodes that neither was trained on.

    Args:
        groups: knows the episodes and their rows.
        logprobs: asks the engine.
        config: how sure to be.
        max_episodes: how many episodes are asked about at most, the newest.
    """

    def __init__(
        self, groups: LiveGroups, logprobs: LogprobFn, config: GateConfig, *, max_episodes: int
    ) -> None:
        self._groups = groups
        self._logprobs = logprobs
        self._config = config
        self._max_episodes = max_episodes
        self._gate = asyncio.Semaphore(MAX_IN_FLIGHT)

    async def compare(self, cycle: Cycle, candidate: str) -> LiveComparison:
        """Compare a cycle's candidate with the version that it started from.

        Raises:
            DenizenError: the engine went away.
        """
        record = await asyncio.to_thread(self._groups.record, cycle)
        episodes = record.heldout[-self._max_episodes :]
        changes = await asyncio.gather(
            *(self._change(one, cycle.start_version, candidate) for one in episodes)
        )
        known = [
            (change, one.advantage)
            for change, one in zip(changes, episodes, strict=True)
            if change is not None
        ]
        return compare_changes(
            [change for change, _ in known],
            [advantage for _, advantage in known],
            num_dropped=len(episodes) - len(known),
            config=self._config,
        )

    async def _change(self, one: Weighed, before: str, after: str) -> float | None:
        """Return how an episode's mean log-probability moved, in nats a token; None: unknown."""
        async with self._gate:
            rows = await asyncio.to_thread(self._groups.rows_of, one)
            if isinstance(rows, SkipReason):
                return None
            moved: list[float] = []
            for row in rows:
                try:
                    old = await self._logprobs(adapter=before, token_ids=row.token_ids)
                    new = await self._logprobs(adapter=after, token_ids=row.token_ids)
                except DenizenError as error:
                    if error.status >= 500:
                        raise
                    log.warning("episode %s cannot be compared: %s", one.episode.id, error)
                    return None
                moved += [
                    b - a
                    for a, b, is_sampled in zip(old, new, row.loss_mask, strict=True)
                    if is_sampled and a is not None and b is not None
                ]
        return sum(moved) / len(moved) if moved else None


def _is_sure(bound: float | None, chance: float | None, tail: float, *, sign: int) -> bool:
    """Say whether an interval lies on one side of 0 and chance does not explain that."""
    return bound is not None and sign * bound > 0 and chance is not None and chance <= tail


def _falls(guards: GateReport, config: GateConfig) -> list[str]:
    return [
        f"skill {skill_id}: fell by {-comparison.mean_gain:.3f}, more than "
        f"{config.max_skill_loss:g} ({comparison.num_tasks} tasks)"
        for skill_id, comparison in guards.skills.items()
        if comparison.num_tasks >= config.min_skill_tasks
        and comparison.mean_gain is not None
        and comparison.mean_gain < -config.max_skill_loss
    ]


def _told(live: LiveComparison, config: GateConfig) -> str:
    if live.mean_gain is None or live.gain_low is None or live.gain_high is None:
        return f"0 of {config.min_tasks} held-out episodes could be compared"
    few = ""
    if live.num_episodes < config.min_tasks:
        few = f", {config.min_tasks} would be needed to tell"
    return (
        f"advantage x change of log-probability {live.mean_gain:+.4f} nats a token (interval "
        f"{live.gain_low:+.4f} to {live.gain_high:+.4f}, chance alone {live.chance_of_gain:.1%}; "
        f"{live.num_episodes} held-out episodes{few})"
    )


def _with(report: GateReport, verdict: Verdict, reasons: Sequence[str]) -> GateReport:
    return dataclasses.replace(report, verdict=verdict, reasons=tuple(reasons))
