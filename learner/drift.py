"""Drift: does a candidate answer otherwise than the live version, whatever its scores say?

Scores see what graders look at. Answers that grow, are cut off, lose all doubt, or text that the
model no longer believes in, are early signs of a model that is being ruined for everything else.
Pure arithmetic; a broken limit leaves a candidate for a person to decide, and never speaks for one.
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from learner.gate import GateReport, Verdict
from memory.types import Call

MAX_LOG_RATIO = 20.0
"""A token's ratio of probabilities counts as e^20 at most, as in training."""

MIN_ANSWERS = 4
"""Tasks answered by both versions below which answers are shown but limit nothing."""


class DriftConfig(BaseModel):
    """How far a candidate may drift and still go live by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_length_ratio: float = Field(default=2.0, gt=1.0, allow_inf_nan=False)
    """The mean length of held-out answers, in tokens, may become at most this many times what it
    was, and must not become so many times less."""

    max_cut_rise: float = Field(default=0.1, ge=0.0, le=1.0)
    """The share of held-out answers that are cut off at their token limit may rise by this."""

    max_surprisal_ratio: float = Field(default=3.0, gt=1.0, allow_inf_nan=False)
    """The mean surprisal of held-out answers' tokens (-log p under the weights that sampled them,
    in nats; an estimate of entropy) may become at most this many times what it was, and must not
    become so many times less. Of versions that gained it was 0.6 to 0.9 times, of one that lost a
    skill 0.23 times what it was."""

    max_answer_kl: float = Field(default=0.5, gt=0.0, allow_inf_nan=False)
    """KL(candidate || live), in nats a token, estimated on the candidate's held-out answers."""

    max_probe_loss: float = Field(default=0.2, gt=0.0, allow_inf_nan=False)
    """The mean log-probability of the general probe's answers, in nats a token, may fall by this
    against the live version. In the demo a version that gained fell by 0.06, one that lost a skill
    by 0.24."""

    max_probe_loss_of_base: float = Field(default=0.5, gt=0.0, allow_inf_nan=False)
    """Likewise against the base model, so that many small falls do not add up to a large one."""

    limit_practised: bool = False
    """Whether the limits of answers hold for the practised skills too. Else they hold for the
    others alone: a practised skill may rightly answer shorter and with less doubt. The demo's
    version that gained, from 18 to 5 tokens with a KL of 2, would not have gone live by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFigures:
    """What one version's answers to the same tasks look like; None where no answer tells."""

    num_answers: int
    mean_tokens: float | None
    cut_share: float | None  # of answers that ended at their token limit
    mean_surprisal: float | None  # nats a token


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerDrift:
    """Both versions' answers to the same tasks."""

    before: AnswerFigures
    after: AnswerFigures
    kl: float | None  # candidate from live version, nats a token, on the candidate's answers


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeFigures:
    """Mean log-probability of the general probe's answers, in nats a token."""

    num_tokens: int
    base: float
    live: float
    candidate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """All that is known of a candidate's drift; None with a reason where something is not.

    Example:
        ``Drift(others=AnswerDrift(before=AnswerFigures(num_answers=16, mean_tokens=21.4,
        cut_share=0.0, mean_surprisal=0.41), after=…, kl=0.03), practised=…,
        probe=ProbeFigures(num_tokens=240, base=-1.71, live=-1.71, candidate=-1.74))``
    """

    others: AnswerDrift | None = None  # answers to tasks of skills that were not practised
    practised: AnswerDrift | None = None
    probe: ProbeFigures | None = None
    why_no_probe: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return asdict(self)


def figures(calls: Sequence[Call]) -> AnswerFigures:
    """Sum up answers whose tokens are known."""
    surprisals = [-p for call in calls for p in call.sampler_logprobs or () if p is not None]
    return AnswerFigures(
        num_answers=len(calls),
        mean_tokens=_mean([len(call.completion_token_ids or ()) for call in calls]),
        cut_share=_mean([float(call.finish_reason == "length") for call in calls]),
        mean_surprisal=_mean(surprisals),
    )


def kl_estimate(
    sampled_from: Sequence[float | None], other: Sequence[float | None]
) -> float | None:
    """Return k3, an estimate of KL(sampled_from || other) in nats a token; None: nothing known.

    ``mean(exp(r) - r - 1)``, r = other - sampled_from (Schulman, "Approximating KL divergence",
    2020). It is unbiased for tokens drawn from the first; of greedy answers it says how far the
    likeliest tokens moved.

    Args:
        sampled_from: log-probability of each token under the weights that sampled it.
        other: under others.
    """
    gaps = [
        min(b - a, MAX_LOG_RATIO)
        for a, b in zip(sampled_from, other, strict=True)
        if a is not None and b is not None
    ]
    return _mean([math.exp(gap) - gap - 1.0 for gap in gaps])


def limited(report: GateReport, drift: Drift, config: DriftConfig) -> GateReport:
    """Return the report; a promotion whose drift breaks a limit as inconclusive, with why."""
    broken = broken_limits(drift, config)
    if report.verdict is not Verdict.PROMOTE or not broken:
        return report
    reasons = (*broken, *report.reasons)
    return dataclasses.replace(report, verdict=Verdict.INCONCLUSIVE, reasons=reasons)


def broken_limits(drift: Drift, config: DriftConfig) -> list[str]:
    """Return what went beyond its limit, in words."""
    broken: list[str] = []
    if drift.others is not None:
        broken += _of_answers("skills that were not practised", drift.others, config)
    if drift.practised is not None and config.limit_practised:
        broken += _of_answers("the practised skills", drift.practised, config)
    if drift.probe is not None:
        broken += _of_probe(drift.probe, config)
    return broken


def _of_answers(whose: str, drift: AnswerDrift, config: DriftConfig) -> Iterator[str]:
    before, after = drift.before, drift.after
    if min(before.num_answers, after.num_answers) < MIN_ANSWERS:
        return
    told = f"answers of {whose}"
    old, new, most = before.mean_tokens, after.mean_tokens, config.max_length_ratio
    if _is_beyond(old, new, most):
        yield f"{told}: {old:.1f} -> {new:.1f} tokens, beyond {most:g} times"
    old, new, most = before.cut_share, after.cut_share, config.max_cut_rise
    if old is not None and new is not None and new - old > most:
        yield f"{told}: cut off {old:.0%} -> {new:.0%}, a rise beyond {most:.0%}"
    old, new, most = before.mean_surprisal, after.mean_surprisal, config.max_surprisal_ratio
    if _is_beyond(old, new, most):
        yield f"{told}: surprisal {old:.2f} -> {new:.2f} nats a token, beyond {most:g} times"
    if drift.kl is not None and drift.kl > config.max_answer_kl:
        yield f"{told}: KL from the live version {drift.kl:.2f}, beyond {config.max_answer_kl:g}"


def _of_probe(probe: ProbeFigures, config: DriftConfig) -> Iterator[str]:
    for name, old, most in (
        ("the live version", probe.live, config.max_probe_loss),
        ("the base model", probe.base, config.max_probe_loss_of_base),
    ):
        if old - probe.candidate > most:
            yield (
                f"general probe: log-probability {old:.2f} of {name} -> {probe.candidate:.2f} "
                f"nats a token, a fall beyond {most:g}"
            )


def _is_beyond(old: float | None, new: float | None, most: float) -> bool:
    """Say whether a figure became more than so many times larger, or smaller."""
    if old is None or new is None:
        return False
    return new > old * most or new * most < old


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
