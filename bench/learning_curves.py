"""Learning curves: held-out scores against seconds and rollouts, and which curve is ahead.

Seconds are those of sampling, grading, training and loading new weights; scoring is not among them.
"""

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from bench.learning_mix import Scores
from bench.workbench import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """Weights after so many steps, and what they took."""

    step: int
    num_rollouts: int
    seconds: float
    weights: Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A checkpoint whose weights were scored."""

    checkpoint: Checkpoint
    scores: Scores

    def to_json(self) -> dict[str, Any]:
        """Return it without the weights."""
        return {
            "step": self.checkpoint.step,
            "rollouts": self.checkpoint.num_rollouts,
            "seconds": round(self.checkpoint.seconds, 1),
            **self.scores.to_json(),
        }


@dataclass(slots=True)
class Curve:
    """Points in the order of their steps, the first before any learning."""

    points: list[Point] = field(default_factory=list)

    @property
    def last(self) -> Point:
        """The last point."""
        return self.points[-1]

    def mean_score(self) -> float:
        """Return the mean of the points' scores, the first left out: all curves share it."""
        return fmean(point.scores.mean for point in self.points[1:])

    def reaching(self, score: float) -> Point | None:
        """Return the first point that has the score and after which it stays.

        It stays when the mean of that point and all later ones is no lower: single points have a
        standard error of a few hundredths.
        """
        for number, point in enumerate(self.points):
            means = [one.scores.mean for one in self.points[number:]]
            if means[0] >= score and fmean(means) >= score:
                return point
        return None

    def to_json(self) -> list[dict[str, Any]]:
        """Return the points."""
        return [point.to_json() for point in self.points]


def race(own: Curve, peer: Curve) -> dict[str, Any]:
    """Say when ``own`` reached what ``peer`` had in the end, and what share of its time that is."""
    goal = peer.last
    reached = own.reaching(goal.scores.mean)
    found: dict[str, Any] = {
        "peer_score": round(goal.scores.mean, 4),
        "peer_seconds": round(goal.checkpoint.seconds, 1),
        "peer_seconds_a_step": _seconds_a_step(goal.checkpoint),
        "seconds_a_step": _seconds_a_step(own.last.checkpoint),
        "at_half_the_time": _at(own, goal.checkpoint.seconds / 2),
    }
    if reached is None:
        return found | {"time_share": None, "reason": "the score was not reached, or did not last"}
    return found | {
        "reached": reached.to_json(),
        "mean_from_there_on": round(
            fmean(p.scores.mean for p in own.points[own.points.index(reached) :]), 4
        ),
        "time_share": round(reached.checkpoint.seconds / goal.checkpoint.seconds, 3),
    }


def _at(curve: Curve, seconds: float) -> float:
    """Return the score of the last point within that time."""
    within = [point for point in curve.points if point.checkpoint.seconds <= seconds]
    return round(within[-1].scores.mean, 4)


def _seconds_a_step(checkpoint: Checkpoint) -> float:
    return round(checkpoint.seconds / checkpoint.step, 2)
