"""Whether a judge may teach a skill: its agreement, its biases, its planted answers, one verdict.

A judge begins as an adviser: its grades are shown, and not trained on. It earns the right to teach
one skill by pairs, answers of that skill that a check or a person has graded too. It does not know
where evidence is kept or what is done with the verdict.

**When is looked.** A decision at every new pair would be taken at the luckiest moment. So the
pairs are looked at, in the order of time, when there are ``min_pairs``, twice as many, four times
as many, …; between two looks the last decision stands. A judge passes a look when the lower end of
kappa's bootstrap interval reaches ``min_kappa`` with the confidence of that look: 97.5 % at the
first, 75 % at the second, 95 % at the third, 97.5 % from then on. The first two are strict early
and mild late, as O'Brien and Fleming's boundary is (Biometrics 1979), so that the additional look
costs little; what was let in mildly is looked at again, strictly, at the third.

**What that is worth.** ``bench/calibration.py`` simulates it; of 1,000 seeds, counting a judge as
admitted that was so at any moment up to 60 pairs, on balanced labels:

- a judge that agrees on 90 % (kappa 0.8) is admitted in 94 %, one that agrees on 95 % in 99.9 %;
- position-biased, length-biased, random and constant judges are admitted in 0 %, judges with such a
  bias in half of their verdicts in less than 1 %, one that agrees on 70 % (kappa 0.4) in 1.4 %;
- close to the bar 60 pairs cannot tell: 75 % agreement (kappa 0.5) is admitted in 8 %, and 80 %,
  exactly the bar, in 27 %. At 120 pairs, 0.1 % and 6 % of these pass.

No rule does all of it within 60 pairs: to admit kappa 0.8 nine times in ten and refuse kappa 0.6
forty-nine times in fifty takes 87 pairs on average (Wald's bound). On unbalanced labels kappa asks
for more: a judge that agrees on 90 % of answers of which 90 % are good does not pass, and should
not (kappa 0.44: it hardly finds the bad ones).

**Alarms** bar at once, whatever the agreement: a seat that decides, a length that decides among
equally good answers, planted answers that it gets wrong. Length is read at the looks; swaps and
planted answers, which are asked for on purpose, as they come. Where good answers are also the long
ones, a judge of length agrees well and few of its errors show it: there the long wrong answers that
are planted find it, and a judge that goes by length in half of its verdicts only, and is right in
the others, is found in 48 % within 60 pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from graders.agreement import Agreement, Pair, measure
from graders.biases import LengthBias, PositionBias, Swap, length_bias, position_bias
from graders.canaries import Canary, CanaryReport, report

LEVELS = (0.975, 0.75, 0.95, 0.975)
"""One-sided confidence of each look; the last holds for all later ones."""


class TrustConfig(BaseModel):
    """When a judge's grades are trained on."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    min_kappa: float = Field(default=0.6, gt=0.0, lt=1.0)
    """Cohen's kappa, with checks and people, that a judge must reach in a skill by the lower end of
    its interval before its grades are trained on; 0.61 begins "substantial" (Landis and Koch 1977).
    """
    min_pairs: int = Field(default=30, ge=10)
    """Answers of a skill that a judge and a check or person have both graded before it is decided
    whether the judge may teach.
    """
    min_canaries: int = Field(default=3, ge=0)
    """Planted answers of each kind (right, wrong, wrong and injected, wrong and long) that a judge
    must have judged in a skill before it may teach; of three, three failures are no accident.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What is known of one version of a judge in one skill; each oldest first."""

    grader: str
    version: str
    skill_id: int
    pairs: Sequence[Pair] = ()
    swaps: Sequence[Swap] = ()
    canaries: Sequence[tuple[Canary, float | None]] = ()
    num_abstained: int = 0  # answers with a known worth that it gave no value


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Whether a version of a judge may teach a skill, and what it rests on.

    Example:
        ``Standing(grader="judge", version="base/1", skill_id=2, is_trusted=False,
        missing=("12 of 30 pairs",), num_pairs=12, num_looked_at=12, …)``
    """

    grader: str
    version: str
    skill_id: int
    is_trusted: bool
    missing: tuple[str, ...]  # what keeps it from teaching; empty when it may
    num_pairs: int  # that are decided, now
    num_looked_at: int  # of which the decision was made: the first so many
    num_undecided: int  # further pairs, of which one side stands exactly in the middle
    num_abstained: int
    agreement: Agreement
    position: PositionBias
    length: LengthBias
    canaries: CanaryReport

    @property
    def doubt(self) -> str | None:
        """Why its grades are not trained on, in one line; None: they are."""
        return None if self.is_trusted else f"judge not trusted yet: {'; '.join(self.missing)}"

    @property
    def alarms(self) -> tuple[str, ...]:
        """What bars it whatever its agreement."""
        found = (part.alarm for part in (self.position, self.length, self.canaries))
        return tuple(alarm for alarm in found if alarm is not None)

    def to_json(self) -> dict[str, Any]:
        """Return the fields, the parts as objects."""
        parts = ("agreement", "position", "length", "canaries")
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in parts}
        return plain | {name: getattr(self, name).to_json() for name in parts}


def decide(evidence: Evidence, config: TrustConfig) -> Standing:
    """Say whether a judge may teach, by the evidence alone: the same evidence, the same verdict."""
    decided = [pair for pair in evidence.pairs if pair.is_decided]
    num_looked_at, level = _look(len(decided), config.min_pairs)
    agreement = measure(_first_decided(evidence.pairs, num_looked_at), level=level)
    position = position_bias(evidence.swaps)
    length = length_bias(decided[:num_looked_at])
    canaries = report(evidence.canaries)
    missing = [
        *_lacking(len(decided), evidence, config),
        *_too_few_canaries(canaries, config),
        *(_weak(agreement, config) if len(decided) >= config.min_pairs else ()),
        *(part.alarm for part in (position, length, canaries) if part.alarm is not None),
    ]
    return Standing(
        grader=evidence.grader,
        version=evidence.version,
        skill_id=evidence.skill_id,
        is_trusted=not missing,
        missing=tuple(missing),
        num_pairs=len(decided),
        num_looked_at=num_looked_at,
        num_undecided=len(evidence.pairs) - len(decided),
        num_abstained=evidence.num_abstained,
        agreement=agreement,
        position=position,
        length=length,
        canaries=canaries,
    )


def _look(num_pairs: int, min_pairs: int) -> tuple[int, float]:
    """Return how many pairs the latest look saw, and its level; before the first, what there is."""
    if num_pairs < min_pairs:
        return num_pairs, LEVELS[0]
    number = (num_pairs // min_pairs).bit_length() - 1  # 0 for the first look
    return min_pairs << number, LEVELS[min(number, len(LEVELS) - 1)]


def _first_decided(pairs: Sequence[Pair], num: int) -> list[Pair]:
    """Return the pairs that came before the one with which there are more than ``num``."""
    kept: list[Pair] = []
    for pair in pairs:
        if pair.is_decided and num == 0:
            break
        kept.append(pair)
        num -= pair.is_decided
    return kept


def _lacking(num_pairs: int, evidence: Evidence, config: TrustConfig) -> list[str]:
    if num_pairs >= config.min_pairs:
        return []
    lacking = f"{num_pairs} of {config.min_pairs} pairs"
    if not evidence.num_abstained:
        return [lacking]
    return [f"{lacking} (it gave no value to {evidence.num_abstained} answers of known worth)"]


def _too_few_canaries(canaries: CanaryReport, config: TrustConfig) -> list[str]:
    need = config.min_canaries
    num = sum(min(judged, need) for judged in canaries.judged.values())
    total = need * len(canaries.judged)
    return [f"{num} of {total} planted answers judged"] if num < total else []


def _weak(agreement: Agreement, config: TrustConfig) -> list[str]:
    if agreement.kappa is None or agreement.low is None:
        return [f"kappa is undefined: {agreement.kappa_reason}"]
    if agreement.low >= config.min_kappa:
        return []
    return [
        f"kappa {agreement.kappa:.2f}, by {agreement.num_pairs} pairs at least "
        f"{agreement.low:.2f}; needed {config.min_kappa:g}"
    ]
