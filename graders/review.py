"""Where a person's word on an answer would tell most: which episodes to ask people about first.

Ranks what a judge has graded and no person has. It does not know how the question is put.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from graders.agreement import CUT
from graders.calibration import TrustConfig
from graders.trust import JudgeTrust
from memory.types import Grade, GradeKind

CANDIDATES = 500  # the newest unlabelled episodes that are weighed
DISAGREES, UNDECIDED, UNCERTAIN, FEW_PAIRS = 1.0, 0.5, 0.5, 0.5
"""Weights: a judge and a check that contradict each other cannot both be right; a value in the
middle, or none at all, says that the judge does not know; a label brings a skill that lacks pairs
closer to its first look.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReviewItem:
    """One episode that people should be asked about.

    Example:
        ``ReviewItem(episode_id="ep_0193-5c", skill_id=2, task_text="3 * 4 = ?", priority=1.3,
        reasons=("judge says 0.9, check 0.0", "the skill has 12 of 30 pairs"))``
    """

    episode_id: str
    created_at: str
    skill_id: int | None
    task_text: str
    priority: float  # the larger the sooner
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields under the contract's names."""
        return {
            "id": self.episode_id,
            "created_at": self.created_at,
            "skill": self.skill_id,
            "task_text": self.task_text,
            "priority": round(self.priority, 3),
            "reasons": list(self.reasons),
        }


def rank_for_review(
    found: Sequence[Mapping[str, Any]], trust: JudgeTrust, config: TrustConfig
) -> list[ReviewItem]:
    """Order episodes by what a label on them would tell; where it would tell nothing, none is due.

    Args:
        found: rows of ``JudgeEvidence.unlabelled``.
        trust: how many pairs each judge has in each skill.
        config: how many it needs.
    """
    items = [item for row in found if (item := _item(row, trust, config)) is not None]
    return sorted(items, key=lambda item: (-item.priority, item.episode_id))


def _item(row: Mapping[str, Any], trust: JudgeTrust, config: TrustConfig) -> ReviewItem | None:
    grades: Sequence[Grade] = row["grades"]
    judges = [grade for grade in grades if grade.kind is GradeKind.JUDGE]
    judged = [grade.value for grade in judges if grade.value is not None]
    checked = [g.value for g in grades if g.kind is GradeKind.CHECK and g.value is not None]
    signs: list[tuple[float, str]] = []
    if not judged:
        signs.append((UNDECIDED, f"the judge gave no value: {judges[0].unscored_reason}"))
    else:
        value = fmean(judged)
        if checked and (value > CUT) is not (fmean(checked) > CUT):
            signs.append((DISAGREES, f"judge says {value:.2g}, check {fmean(checked):.2g}"))
        doubt = 1 - abs(value - CUT) / CUT
        if doubt >= 0.5:
            signs.append((UNCERTAIN * doubt, f"the judge is unsure: {value:.2g}"))
        if not checked:  # a label makes a pair
            signs += _lacking(judges[0], row["skill_id"], trust, config)
    if not signs:
        return None
    return ReviewItem(
        episode_id=row["id"],
        created_at=row["created_at"],
        skill_id=row["skill_id"],
        task_text=row["task_text"],
        priority=sum(weight for weight, _ in signs),
        reasons=tuple(reason for _, reason in signs),
    )


def _lacking(
    judge: Grade, skill_id: int | None, trust: JudgeTrust, config: TrustConfig
) -> list[tuple[float, str]]:
    if skill_id is None:
        return []
    standing = trust.standing(judge.grader, judge.version, skill_id)
    num = 0 if standing is None else standing.num_pairs
    if num >= config.min_pairs:
        return []
    share = 1 - num / config.min_pairs
    return [(FEW_PAIRS * share, f"the skill has {num} of {config.min_pairs} pairs")]
