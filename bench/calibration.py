"""Simulated judges before the rule of ``graders/calibration.py``: who is let in, who is found out.

Each seed draws answers of known worth, lets every judge grade them, and asks for the standing after
each new pair; "admitted" means at any moment up to so many pairs, which is the hardest way to count
for a judge that must not be let in. Prints JSON. It judges nothing but the rule: a real model's
agreement is measured by the service, on its own traffic.

    python -m bench.calibration --seeds 1000
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graders.agreement import Pair
from graders.biases import Swap, read_swap
from graders.calibration import Evidence, TrustConfig, decide
from graders.canaries import Canary

MAX_PAIRS = 60
PAIRS_PER_PROBE = 2  # with every second pair, one swap of two answers, and one planted answer
SHARE_GOOD = 0.5
PADDED_BY = 4.0  # standard deviations; 200 characters with a deviation of 30 % against 650


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What a simulated judge is shown of one answer, and what it must not know."""

    is_good: bool
    length: float  # standard normal
    is_first: bool | None = None  # its seat in a comparison; in pairs the seat is drawn


Judge = Callable[[Shown, np.random.Generator], bool]
"""Says whether an answer is good; in a comparison, whether the shown one wins."""


def accurate(share: float) -> Judge:
    """Make a judge that is right with a fixed probability."""

    def judge(shown: Shown, rng: np.random.Generator) -> bool:
        return shown.is_good if rng.random() < share else not shown.is_good

    return judge


def seated(share: float) -> Judge:
    """Make a judge whose verdict is the seat in a share of cases; else it is right in 95 %."""

    def judge(shown: Shown, rng: np.random.Generator) -> bool:
        first = rng.random() < 0.5 if shown.is_first is None else shown.is_first
        return first if rng.random() < share else accurate(0.95)(shown, rng)

    return judge


def measuring(share: float) -> Judge:
    """Make a judge whose verdict is the length in a share of cases; else it is right in 95 %."""

    def judge(shown: Shown, rng: np.random.Generator) -> bool:
        return shown.length > 0 if rng.random() < share else accurate(0.95)(shown, rng)

    return judge


def _coin(_shown: Shown, rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """A judge, whether it ought to teach, and how length goes with quality where it works."""

    judge: Judge
    ought: bool | None  # None: close to the bar, reported only
    length_tells: float = 0.0  # how many standard deviations longer the good answers are


JUDGES: Mapping[str, Simulated] = {
    "agrees_90": Simulated(judge=accurate(0.9), ought=True),
    "agrees_95": Simulated(judge=accurate(0.95), ought=True),
    "position": Simulated(judge=seated(1.0), ought=False),
    "position_in_half": Simulated(judge=seated(0.5), ought=False),
    "length": Simulated(judge=measuring(1.0), ought=False),
    "length_in_half": Simulated(judge=measuring(0.5), ought=False),
    # Length alone agrees on 93 % here: kappa would let it in.
    "length_where_long_is_good": Simulated(judge=measuring(1.0), ought=False, length_tells=3.0),
    "length_in_half_where_long_is_good": Simulated(
        judge=measuring(0.5), ought=None, length_tells=3.0
    ),
    "random": Simulated(judge=_coin, ought=False),
    "always_good": Simulated(judge=lambda _shown, _rng: True, ought=False),
    "always_bad": Simulated(judge=lambda _shown, _rng: False, ought=False),
    "agrees_70": Simulated(judge=accurate(0.7), ought=False),
    "agrees_75": Simulated(judge=accurate(0.75), ought=None),
    "agrees_80": Simulated(judge=accurate(0.8), ought=None),
}
"""``agrees_70``, ``_75``, ``_80``: kappa 0.4, 0.5 and, exactly the bar, 0.6 on balanced labels."""


def evidence_of(name: str, seed: int, num_pairs: int = MAX_PAIRS) -> Evidence:
    """Let a judge grade what one seed draws."""
    one, rng = JUDGES[name], np.random.default_rng([seed, list(JUDGES).index(name)])
    pairs: list[Pair] = []
    swaps: list[Swap] = []
    canaries: list[tuple[Canary, float | None]] = []
    kinds = list(Canary)
    for number in range(num_pairs):
        is_good = bool(rng.random() < SHARE_GOOD)
        middle = one.length_tells / 2 * (1 if is_good else -1)
        length = float(rng.normal(middle))
        verdict = one.judge(Shown(is_good=is_good, length=length), rng)
        size = max(1, round(200 * np.exp(0.3 * length)))
        pairs.append(Pair(judge=float(verdict), truth=float(is_good), length=size))
        if number % PAIRS_PER_PROBE == 0:
            swaps.append(_swap(one, rng))
            kind = kinds[len(canaries) % len(kinds)]
            longer = PADDED_BY if kind is Canary.PADDED else 0.0
            planted = Shown(is_good=kind.is_good, length=float(rng.normal(longer)))
            canaries.append((kind, float(one.judge(planted, rng))))
    return Evidence(
        grader=name, version="1", skill_id=1, pairs=pairs, swaps=swaps, canaries=canaries
    )


def _swap(one: Simulated, rng: np.random.Generator) -> Swap:
    """Show a good answer in the first seat and in the second; return what became of it."""
    length = float(rng.normal(one.length_tells / 2))
    first = one.judge(Shown(is_good=True, length=length, is_first=True), rng)
    second = one.judge(Shown(is_good=True, length=length, is_first=False), rng)
    return read_swap(first, not second)


def up_to(whole: Evidence, num_pairs: int) -> Evidence:
    """Return what was known when there were so many pairs."""
    num_probes = -(-num_pairs // PAIRS_PER_PROBE)
    return Evidence(
        grader=whole.grader,
        version=whole.version,
        skill_id=whole.skill_id,
        pairs=whole.pairs[:num_pairs],
        swaps=whole.swaps[:num_probes],
        canaries=whole.canaries[:num_probes],
    )


def first_admitted(whole: Evidence, config: TrustConfig, looks: Sequence[int]) -> int | None:
    """Return at how many pairs a judge is first trusted; None: never."""
    for num in looks:
        if decide(up_to(whole, num), config).is_trusted:
            return num
    return None


def simulate(name: str, seeds: int, config: TrustConfig) -> dict[str, Any]:
    """Run one judge over the seeds."""
    every = [
        num
        for num in range(config.min_pairs, MAX_PAIRS + 1)
        if num % PAIRS_PER_PROBE == 1 or num % config.min_pairs == 0  # else as before
    ]
    admitted = alarmed = trusted_at_end = 0
    for seed in range(seeds):
        whole = evidence_of(name, seed)
        admitted += first_admitted(whole, config, every) is not None
        end = decide(whole, config)
        trusted_at_end += end.is_trusted
        alarmed += any(p.alarm for p in (end.position, end.length, end.canaries))
    return {
        "admitted_within_60": admitted / seeds,
        "trusted_at_60": trusted_at_end / seeds,
        "alarm_at_60": alarmed / seeds,
    }


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    seeds = parser.parse_args().seeds
    began, config = time.perf_counter(), TrustConfig()
    judges = {name: simulate(name, seeds, config) for name in JUDGES}
    bad = [judges[n]["admitted_within_60"] for n, one in JUDGES.items() if one.ought is False]
    good = [judges[n]["admitted_within_60"] for n, one in JUDGES.items() if one.ought]
    told = {
        "seeds": seeds,
        "settings": config.model_dump(),
        "max_wrong_admissions": max(bad),
        "max_wrong_bars": 1 - min(good),
        "judges": judges,
        "seconds": round(time.perf_counter() - began, 1),
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
