"""Drift of a candidate: figures by hand, and which limit each of them breaks."""

import math
from dataclasses import replace
from typing import Any

import pytest

from learner.drift import (
    AnswerDrift,
    AnswerFigures,
    Drift,
    DriftConfig,
    ProbeFigures,
    broken_limits,
    figures,
    kl_estimate,
    limited,
)
from learner.gate import Comparison, GateReport, Verdict
from tests import records

CONFIG = DriftConfig()
BEFORE = AnswerFigures(num_answers=8, mean_tokens=20.0, cut_share=0.0, mean_surprisal=0.6)
SAME = AnswerDrift(before=BEFORE, after=BEFORE, kl=0.01)
PROBE = ProbeFigures(num_tokens=240, base=-1.7, live=-1.8, candidate=-1.8)
PROMOTE = GateReport(
    verdict=Verdict.PROMOTE,
    reasons=("overall: gain 0.310 -> 0.520",),
    overall=Comparison(num_tasks=24, num_dropped=0),
    skills={},
    confidence=0.95,
)


def moved(**after: Any) -> AnswerDrift:
    return replace(SAME, after=replace(BEFORE, **after))


def test_figures_by_hand() -> None:
    calls = [
        records.call(completion_token_ids=(5, 6, 2), sampler_logprobs=(-0.5, None, -0.1)),
        records.call(
            completion_token_ids=(5, 6, 7, 8, 9),
            sampler_logprobs=(-0.4, -0.2, -0.2, -0.1, -0.3),
            finish_reason="length",
        ),
        records.call(completion_token_ids=(5,), sampler_logprobs=(-0.6,), finish_reason="length"),
    ]
    found = figures(calls)
    assert (found.num_answers, found.mean_tokens) == (3, 3.0)
    assert found.cut_share == pytest.approx(2 / 3)
    assert found.mean_surprisal == pytest.approx(2.4 / 8), "of the eight tokens that are known"


def test_what_no_answer_tells_is_none() -> None:
    nothing = AnswerFigures(num_answers=0, mean_tokens=None, cut_share=None, mean_surprisal=None)
    assert figures([]) == nothing
    silent = records.call(completion_token_ids=(5, 2), sampler_logprobs=None)
    assert figures([silent]).mean_surprisal is None
    assert figures([silent]).mean_tokens == 2.0


def test_kl_by_hand_and_of_nothing() -> None:
    # exp(-0.5) - (-0.5) - 1 = 0.1065, exp(0.2) - 0.2 - 1 = 0.0214
    assert kl_estimate([-0.1, -0.7, None], [-0.6, -0.5, -1.0]) == pytest.approx(
        (math.exp(-0.5) + 0.5 - 1 + math.exp(0.2) - 0.2 - 1) / 2
    )
    assert kl_estimate([-0.3, -0.2], [-0.3, -0.2]) == 0.0
    assert kl_estimate([None], [-0.5]) is None


def test_kl_of_a_token_that_was_next_to_impossible_is_a_number() -> None:
    found = kl_estimate([-9999.0], [-0.5])
    assert found is not None
    assert math.isfinite(found)
    assert found > CONFIG.max_answer_kl


@pytest.mark.parametrize(
    ("drift", "told"),
    [
        (Drift(others=moved(mean_tokens=9.9)), "20.0 -> 9.9 tokens, beyond 2 times"),
        (Drift(others=moved(mean_tokens=40.1)), "20.0 -> 40.1 tokens, beyond 2 times"),
        (Drift(others=moved(cut_share=0.25)), "cut off 0% -> 25%, a rise beyond 10%"),
        (Drift(others=moved(mean_surprisal=0.19)), "surprisal 0.60 -> 0.19 nats a token, beyond 3"),
        (Drift(others=moved(mean_surprisal=0.0)), "surprisal 0.60 -> 0.00 nats a token"),
        (Drift(others=moved(mean_surprisal=1.9)), "surprisal 0.60 -> 1.90 nats a token"),
        (Drift(others=replace(SAME, kl=0.6)), "KL from the live version 0.60, beyond 0.5"),
        (Drift(probe=replace(PROBE, candidate=-2.05)), "-1.80 of the live version -> -2.05"),
        (Drift(probe=replace(PROBE, live=-2.2, candidate=-2.3)), "-1.70 of the base model -> -2.3"),
    ],
)
def test_each_limit_keeps_a_candidate_for_a_person(drift: Drift, told: str) -> None:
    report = limited(PROMOTE, drift, CONFIG)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert told in report.reasons[0]
    assert report.reasons[1:] == PROMOTE.reasons, "that it gained is told too"


@pytest.mark.parametrize(
    "drift",
    [
        Drift(),
        Drift(others=SAME, practised=SAME, probe=PROBE),
        Drift(others=moved(mean_tokens=10.0, cut_share=0.1, mean_surprisal=0.21)),
        Drift(probe=replace(PROBE, candidate=-1.5)),
        Drift(others=moved(mean_tokens=None, cut_share=None, mean_surprisal=None)),
        Drift(practised=moved(mean_tokens=2.0, mean_surprisal=0.0)),
        Drift(others=replace(moved(mean_tokens=2.0), before=replace(BEFORE, num_answers=3))),
    ],
    ids=["nothing", "same", "within", "better", "unknown", "practised", "too few answers"],
)
def test_what_breaks_no_limit_changes_nothing(drift: Drift) -> None:
    assert limited(PROMOTE, drift, CONFIG) is PROMOTE


def test_practised_skills_are_limited_where_that_is_asked_for() -> None:
    drift = Drift(practised=moved(mean_tokens=2.0))
    [told] = broken_limits(drift, DriftConfig(limit_practised=True))
    assert told == "answers of the practised skills: 20.0 -> 2.0 tokens, beyond 2 times"


@pytest.mark.parametrize("verdict", [Verdict.REJECT, Verdict.INCONCLUSIVE])
def test_drift_neither_rescues_nor_rejects(verdict: Verdict) -> None:
    report = replace(PROMOTE, verdict=verdict, reasons=("skill 2: lost",))
    assert limited(report, Drift(others=moved(mean_tokens=1.0)), CONFIG) is report
    assert limited(report, Drift(others=SAME, probe=PROBE), CONFIG) is report
