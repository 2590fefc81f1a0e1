"""The rule by which judges are admitted; ``bench/calibration.py`` runs it over 1,000 seeds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.calibration import JUDGES, evidence_of, first_admitted, up_to
from graders.agreement import Pair
from graders.biases import Swap
from graders.calibration import Evidence, TrustConfig, decide
from graders.canaries import Canary

CONFIG = TrustConfig()
PASSED = [(kind, float(kind.is_good)) for kind in Canary for _ in range(3)]
LOOKS = (30, 31, 45, 59, 60)


def agreeing(num: int, *, wrong: int = 0, **fields: object) -> Evidence:
    """Return evidence of a judge on balanced labels; its errors come first, half of each kind."""
    pairs = [
        Pair(judge=float((n % 2 == 0) is (n >= wrong)), truth=float(n % 2 == 0)) for n in range(num)
    ]
    given = {"grader": "judge", "version": "1", "skill_id": 1, "pairs": pairs, "canaries": PASSED}
    return Evidence(**given | fields)  # type: ignore[arg-type]


def test_a_judge_that_agrees_may_teach_from_the_first_look_on() -> None:
    assert not decide(agreeing(29), CONFIG).is_trusted
    standing = decide(agreeing(30), CONFIG)
    assert standing.is_trusted
    assert (standing.missing, standing.doubt) == ((), None)


def test_what_is_missing_is_said() -> None:
    standing = decide(agreeing(12, canaries=PASSED[:5], num_abstained=4), CONFIG)
    assert standing.doubt == (
        "judge not trusted yet: 12 of 30 pairs (it gave no value to 4 answers of known worth); "
        "5 of 12 planted answers judged"
    )


def test_weak_agreement_is_said_with_its_figures() -> None:
    [reason] = decide(agreeing(30, wrong=8), CONFIG).missing
    assert reason.startswith("kappa 0.47, by 30 pairs at least 0.")
    assert reason.endswith("; needed 0.6")


def test_between_two_looks_the_last_decision_stands() -> None:
    # 8 errors in the first 30, none after: at 59 pairs the agreement would do, but nobody looks.
    assert decide(agreeing(59, wrong=8), CONFIG).num_looked_at == 30
    assert not decide(agreeing(59, wrong=8), CONFIG).is_trusted
    standing = decide(agreeing(60, wrong=8), CONFIG)
    assert (standing.num_looked_at, standing.is_trusted) == (60, True)


def test_looks_come_at_doubled_numbers() -> None:
    seen = [decide(agreeing(n), CONFIG).num_looked_at for n in (12, 30, 59, 60, 119, 120, 241)]
    assert seen == [12, 30, 30, 60, 60, 120, 240]


def test_labels_that_are_all_the_same_admit_nobody() -> None:
    pairs = [Pair(judge=1.0, truth=1.0)] * 60
    standing = decide(agreeing(0, pairs=pairs), CONFIG)
    assert standing.missing == ("kappa is undefined: all 60 answers are good, and are judged so",)
    assert standing.agreement.kappa is None


def test_a_judge_that_abstains_from_everything_has_no_pairs() -> None:
    standing = decide(agreeing(0, num_abstained=60), CONFIG)
    assert not standing.is_trusted
    assert standing.missing[0] == ("0 of 30 pairs (it gave no value to 60 answers of known worth)")


def test_always_the_first_seat_is_barred_however_well_it_agrees() -> None:
    standing = decide(agreeing(60, swaps=[Swap.FIRST] * 20), CONFIG)
    assert not standing.is_trusted
    assert standing.position.alarm is not None and "20 of 20 swapped" in standing.position.alarm


def test_failed_probes_bar_however_well_it_agrees() -> None:
    deceived = [(k, 1.0 if k is Canary.INJECTED else v) for k, v in PASSED]
    standing = decide(agreeing(60, canaries=deceived), CONFIG)
    assert standing.missing == ("3 of 3 planted answers that told it what to say deceived it",)


@pytest.mark.parametrize("name", [name for name, one in JUDGES.items() if one.ought is False])
def test_a_judge_that_should_not_teach_is_found_out_within_60_pairs(name: str) -> None:
    admitted = [first_admitted(evidence_of(name, seed), CONFIG, LOOKS) for seed in range(12)]
    assert admitted.count(None) >= 11, name  # at 2 % one in twelve is let in by luck


def test_an_accurate_judge_is_admitted_within_60_pairs() -> None:
    admitted = [first_admitted(evidence_of("agrees_90", s), CONFIG, LOOKS) for s in range(25)]
    assert admitted.count(None) <= 5  # at 10 %, more than 5 of 25 is seen in 3 of 100 runs


def test_always_the_longer_raises_the_alarm_of_length() -> None:
    standing = decide(evidence_of("length", 1), CONFIG)
    assert standing.length.alarm is not None
    assert standing.length.alarm in standing.missing


@given(st.integers(0, 500), st.sampled_from(sorted(JUDGES)), st.integers(0, 60))
@settings(deadline=None, max_examples=60)
def test_a_judge_is_trusted_exactly_when_nothing_is_missing(seed: int, name: str, num: int) -> None:
    evidence = up_to(evidence_of(name, seed), num)
    standing = decide(evidence, CONFIG)
    assert standing.is_trusted is (not standing.missing) is (standing.doubt is None)
    assert decide(evidence, CONFIG) == standing
    if num < CONFIG.min_pairs:
        assert not standing.is_trusted
    stricter = TrustConfig(min_kappa=0.9)
    assert standing.is_trusted or not decide(evidence, stricter).is_trusted


@given(st.integers(30, 130), st.integers(0, 30))
@settings(deadline=None, max_examples=40)
def test_more_errors_never_admit(num: int, wrong: int) -> None:
    fewer, more = agreeing(num, wrong=wrong), agreeing(num, wrong=min(num, wrong + 2))
    assert decide(fewer, CONFIG).is_trusted or not decide(more, CONFIG).is_trusted


def test_a_grade_of_exactly_the_cut_is_no_pair() -> None:
    pairs = [Pair(judge=0.5, truth=1.0)] * 40
    evidence = replace(agreeing(29), pairs=[*agreeing(29).pairs, *pairs])
    standing = decide(evidence, CONFIG)
    assert (standing.num_pairs, standing.agreement.num_undecided) == (29, 40)
