"""Proof: is the candidate better than what is live, on the same held-out tasks?

Pure arithmetic on paired scores. Knows nothing of how tasks were answered or graded, and decides
nothing: the verdict is data, and what follows from it is the cycle's and the people's part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

MAX_NEWLY_UNSCORED = 0.1
"""Share of tasks that the candidate's answers may make unscorable; more would hide its failures."""

MIN_DIFFERENCE = 1e-9
"""Scores of one task that lie closer together are equal: means of the same grades in another
order."""


class Verdict(StrEnum):
    """What the gate found."""

    PROMOTE = "promote"
    REJECT = "reject"
    INCONCLUSIVE = "inconclusive"


class GateConfig(BaseModel):
    """How sure the gate has to be."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)
    """Of the two-sided interval of a gain; a candidate that changes nothing is promoted in less
    than (1 - confidence) / 2 of all cases."""

    num_bootstrap: int = Field(default=2000, ge=100)
    """Resamples of the tasks, and of signs for the exact test; 2000 settles a 2.5 % tail to about
    ±0.35 points."""

    min_gain: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """The interval's lower bound has to exceed this (score, 0 to 1)."""

    max_skill_loss: float = Field(default=0.05, ge=0.0, allow_inf_nan=False)
    """A skill whose mean falls by more than this (score, 0 to 1) blocks a promotion, significant
    or not."""

    min_tasks: int = Field(default=8, ge=2)
    """Scored held-out tasks below which nothing is concluded: with fewer than six, even if every
    task gained, chance alone would do so in more than 2.5 % of all cases (2^-5 = 3.1 %)."""

    min_skill_tasks: int = Field(default=4, ge=1)
    """Scored held-out tasks below which a skill's mean is shown but blocks nothing."""

    seed: int = Field(default=0, ge=0)
    """Of the resampling; the same scores give the same report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Paired scores before and after, summed up; None where no task was scored on both sides.

    Example:
        ``Comparison(num_tasks=24, num_dropped=1, mean_before=0.31, mean_after=0.52,
        mean_gain=0.21, gain_low=0.08, gain_high=0.33, chance_of_gain=0.002,
        chance_of_loss=0.999)``
    """

    num_tasks: int  # scored on both sides
    num_dropped: int  # unscored on one side at least
    num_newly_unscored: int = 0  # scored before and not after: the candidate may have broken them
    mean_before: float | None = None
    mean_after: float | None = None
    mean_gain: float | None = None
    gain_low: float | None = None  # bootstrap percentile interval of the mean gain
    gain_high: float | None = None
    chance_of_gain: float | None = None  # of a gain this large if signs were random
    chance_of_loss: float | None = None  # of a loss this large if signs were random


@dataclass(frozen=True, kw_only=True, slots=True)
class GateReport:
    """The verdict and everything it rests on."""

    verdict: Verdict
    reasons: tuple[str, ...]
    overall: Comparison
    skills: Mapping[int | None, Comparison]  # None: tasks that belong to no skill
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain JSON; skills are a list, as JSON has no number keys."""
        return self.verdict_to_json() | {
            "confidence": self.confidence,
            "overall": asdict(self.overall),
            "skills": [
                {"skill_id": skill_id} | asdict(comparison)
                for skill_id, comparison in self.skills.items()
            ],
        }

    def verdict_to_json(self) -> dict[str, Any]:
        """Return the verdict and its reasons alone."""
        return {"verdict": self.verdict.value, "reasons": list(self.reasons)}


def compare(
    before: Mapping[str, float | None],
    after: Mapping[str, float | None],
    skills: Mapping[str, int | None],
    *,
    config: GateConfig,
    guards: frozenset[str] = frozenset(),
) -> GateReport:
    """Compare a candidate with what is live, task by task, overall and per skill.

    ``promote``: the overall gain's lower bound exceeds ``min_gain``, chance does not explain it,
    and no skill lost. ``reject``: a significant loss, overall or of one skill. ``inconclusive``:
    everything else, with what is missing.

    Args:
        before: the live version's score of each held-out task, in [0, 1]; None where nothing could
            score it.
        after: the candidate's scores of the same tasks.
        skills: each task's skill.
        config: how sure to be.
        guards: tasks of skills that were not practised: they can show a loss of their skill, and do
            not dilute the overall gain.

    Raises:
        ValueError: the three do not name the same tasks, or a score is outside [0, 1].
    """
    if not before.keys() == after.keys() == skills.keys():
        differing = sorted((before.keys() ^ after.keys()) | (before.keys() ^ skills.keys()))
        raise ValueError(
            f"before, after and skills must name the same tasks; differ in {differing}"
        )
    task_ids = sorted(before)
    overall = _comparison([i for i in task_ids if i not in guards], before, after, config)
    members: dict[int | None, list[str]] = {}
    for task_id in task_ids:
        members.setdefault(skills[task_id], []).append(task_id)
    by_skill = {
        skill_id: _comparison(members[skill_id], before, after, config)
        for skill_id in sorted(members, key=lambda i: (i is None, i or 0))
    }
    verdict, reasons = _judge(overall, by_skill, config)
    return GateReport(
        verdict=verdict,
        reasons=tuple(reasons),
        overall=overall,
        skills=by_skill,
        confidence=config.confidence,
    )


def bootstrap_interval(
    gains_N: npt.NDArray[np.float64], *, confidence: float, num_bootstrap: int, seed: int
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean (Efron and Tibshirani 1993, chapter 13).

    Tasks are resampled with their pairs, so what all answers to one task share cancels out.
    """
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(gains_N), size=(num_bootstrap, len(gains_N)))
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(gains_N[picks].mean(axis=1), [tail, 1.0 - tail])
    return float(low), float(high)


def sign_flip_chances(
    gains_N: npt.NDArray[np.float64], *, num_bootstrap: int, seed: int
) -> tuple[float, float]:
    """Return how likely a sum at least as large, and at least as small, is when signs are random.

    Fisher's randomization test for pairs. The percentile interval alone is too sure of itself when
    few tasks changed: four gains among thirty tasks and no loss have a lower bound above zero, but
    come about by chance in 1 of 16 cases. One is added to both counts, so that the estimate never
    falls below the true chance's order (Phipson and Smyth, 2010).
    """
    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1.0, 1.0]), size=(num_bootstrap, len(gains_N)))
    sums, observed = signs @ gains_N, gains_N.sum()
    tolerance = MIN_DIFFERENCE * len(gains_N)
    as_large = int((sums >= observed - tolerance).sum())
    as_small = int((sums <= observed + tolerance).sum())
    return (as_large + 1) / (num_bootstrap + 1), (as_small + 1) / (num_bootstrap + 1)


def _comparison(
    task_ids: Sequence[str],
    before: Mapping[str, float | None],
    after: Mapping[str, float | None],
    config: GateConfig,
) -> Comparison:
    """Sum up the tasks that were scored on both sides."""
    pairs = [
        (old, new)
        for task_id in task_ids
        if (old := before[task_id]) is not None and (new := after[task_id]) is not None
    ]
    num_dropped = len(task_ids) - len(pairs)
    num_newly_unscored = sum(before[i] is not None and after[i] is None for i in task_ids)
    if not pairs:
        return Comparison(
            num_tasks=0, num_dropped=num_dropped, num_newly_unscored=num_newly_unscored
        )
    before_N, after_N = np.array(pairs, dtype=np.float64).T
    if not (((before_N >= 0) & (before_N <= 1)).all() and ((after_N >= 0) & (after_N <= 1)).all()):
        raise ValueError("scores must lie in [0, 1]")
    gains_N = after_N - before_N
    gains_N[np.abs(gains_N) < MIN_DIFFERENCE] = 0.0
    low, high = bootstrap_interval(
        gains_N,
        confidence=config.confidence,
        num_bootstrap=config.num_bootstrap,
        seed=config.seed,
    )
    of_gain, of_loss = sign_flip_chances(
        gains_N, num_bootstrap=config.num_bootstrap, seed=config.seed
    )
    return Comparison(
        num_tasks=len(pairs),
        num_dropped=num_dropped,
        num_newly_unscored=num_newly_unscored,
        mean_before=float(before_N.mean()),
        mean_after=float(after_N.mean()),
        mean_gain=float(gains_N.mean()),
        gain_low=low,
        gain_high=high,
        chance_of_gain=of_gain,
        chance_of_loss=of_loss,
    )


def _judge(
    overall: Comparison, by_skill: Mapping[int | None, Comparison], config: GateConfig
) -> tuple[Verdict, list[str]]:
    """Return the verdict and its reasons."""
    if overall.num_tasks < config.min_tasks:
        missing = config.min_tasks - overall.num_tasks
        return Verdict.INCONCLUSIVE, [
            f"{overall.num_tasks} of {config.min_tasks} held-out tasks were scored on both sides, "
            f"{missing} more are needed ({overall.num_dropped} could not be scored)"
        ]
    if overall.num_newly_unscored > MAX_NEWLY_UNSCORED * overall.num_tasks:
        return Verdict.INCONCLUSIVE, [
            f"{overall.num_newly_unscored} answers of the candidate could not be scored where the "
            f"live version's could; only {overall.num_tasks} tasks were scored on both sides"
        ]
    named = [("overall", overall)] + [(_name(i), c) for i, c in by_skill.items()]
    losses = [f"{name}: lost {_numbers(c)}" for name, c in named if _is_loss(c, config)]
    if losses:
        return Verdict.REJECT, losses
    gain = f"overall: gain {_numbers(overall)}"
    if not _is_gain(overall, config):
        return Verdict.INCONCLUSIVE, [
            f"{gain} is not surely above {config.min_gain:g}{_by_chance(overall)}; more held-out "
            "tasks would narrow it"
        ]
    falls = [
        f"{_name(skill_id)}: fell {_numbers(comparison)}, more than {config.max_skill_loss:g}"
        for skill_id, comparison in by_skill.items()
        if comparison.num_tasks >= config.min_skill_tasks
        and comparison.mean_gain is not None
        and comparison.mean_gain < -config.max_skill_loss - MIN_DIFFERENCE
    ]
    if falls:
        return Verdict.INCONCLUSIVE, [*falls, gain]
    return Verdict.PROMOTE, [gain]


def _is_gain(comparison: Comparison, config: GateConfig) -> bool:
    low, chance = comparison.gain_low, comparison.chance_of_gain
    tail = (1.0 - config.confidence) / 2.0
    return low is not None and low > config.min_gain and chance is not None and chance <= tail


def _is_loss(comparison: Comparison, config: GateConfig) -> bool:
    high, chance = comparison.gain_high, comparison.chance_of_loss
    tail = (1.0 - config.confidence) / 2.0
    return high is not None and high < 0.0 and chance is not None and chance <= tail


def _name(skill_id: int | None) -> str:
    return "tasks without a skill" if skill_id is None else f"skill {skill_id}"


def _by_chance(comparison: Comparison) -> str:
    """Say how likely chance alone is to gain as much, which decides beside the interval."""
    chance = comparison.chance_of_gain
    return "" if chance is None else f" (chance alone gains as much in {chance:.1%} of draws)"


def _numbers(comparison: Comparison) -> str:
    """Return ``0.310 -> 0.520 (+0.210, 95 % interval …, 24 tasks)``."""
    return (
        f"{comparison.mean_before:.3f} -> {comparison.mean_after:.3f} "
        f"({comparison.mean_gain:+.3f}, interval {comparison.gain_low:+.3f} to "
        f"{comparison.gain_high:+.3f}, {comparison.num_tasks} tasks)"
    )
