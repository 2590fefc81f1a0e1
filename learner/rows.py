"""From graded rollouts to training rows, and the file that carries rows to the training process.

A row is what the trainer sees of one rollout: token ids as sampled, which of them are trained, the
sampler's log-probabilities and the advantages. Everything that does not become a row is counted by
reason. Knows nothing of torch, nor of how rollouts were sampled and graded. Text never appears
here: tokens are trained as they were sampled.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from learner.advantages import Baseline, group_advantages
from learner.errors import RowError


class SkipReason(StrEnum):
    """Why a rollout does not become a row."""

    UNSCORED = "unscored"  # no grader could score it
    ADVISORY = "advisory"  # only a judge did that is not trusted in the skill
    WITHHELD = "withheld"  # a secret was taken out of it, or its prompt holds a forged turn
    EMPTY_COMPLETION = "empty_completion"
    NO_PROMPT = "no_prompt"  # the engine did not report the prompt's token ids
    NO_LOGPROBS = "no_logprobs"  # none recorded, or not one per token
    STALE = "stale"  # sampled too many steps or versions ago, or nobody knows how many
    TOO_FEW = "too_few"  # fewer than two usable rollouts in its group: nothing to compare with
    ZERO_SIGNAL = "zero_signal"  # every usable rollout of its group has the same reward
    # Of recorded episodes:
    REPLAYABLE = "replayable"  # a task was made of it, which is practised instead
    HELDOUT = "heldout"  # it proves what others taught
    TAUGHT = "taught"  # the version that is continued has learned from it already
    UNTRAINABLE = "untrainable"  # none of its tokens can be trained
    NO_SEQUEL = "no_sequel"  # of none of its turns it is known what came after
    TOO_LONG = "too_long"  # one of its rows has more tokens than a training step may hold


@dataclass(frozen=True, kw_only=True, slots=True)
class Rollout:
    """One graded try at a task.

    Example:
        ``Rollout(prompt_token_ids=(1, 9, 8), completion_token_ids=(33, 2),
        sampler_logprobs=(-0.41, -0.02), reward=1.0, finish_reason="stop")``
    """

    prompt_token_ids: Sequence[int]
    completion_token_ids: Sequence[int]  # [L], a final end-of-sequence token included
    sampler_logprobs: Sequence[float | None] | None  # [L]; None where unknown
    reward: float | None  # None: no grader could score it
    finish_reason: str | None
    is_advisory: bool = False  # there is no reward because its judge is not trusted
    is_withheld: bool = False  # by privacy: its call says why
    staleness: int | None = 0  # optimizer steps since the weights that sampled it; None: unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class RolloutGroup:
    """Rollouts that are compared with each other: tries of one task by one policy."""

    id: str
    task_id: str
    skill_id: int | None
    rollouts: Sequence[Rollout]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRow:
    """One sequence as the trainer sees it; four parallel lists.

    Example:
        ``TrainingRow(group_id="cycle_01-g3", token_ids=(1, 9, 8, 33, 2), loss_mask=(False, False,
        False, True, True), sampler_logprobs=(None, None, None, -0.41, -0.02), advantages=(0.0,
        0.0, 0.0, 0.5, 0.5))``
    """

    group_id: str
    token_ids: tuple[int, ...]  # [L]
    loss_mask: tuple[bool, ...]  # [L]; True: this token was sampled by the policy and is trained
    sampler_logprobs: tuple[float | None, ...]  # [L]; None: not trained, or trained and unknown
    advantages: tuple[float, ...]  # [L]; 0 where not trained

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name))
            for name in ("token_ids", "loss_mask", "sampler_logprobs", "advantages")
        }
        if len(set(lengths.values())) != 1:
            raise RowError(f"row of group {self.group_id!r}: lengths differ: {lengths}")
        if not any(self.loss_mask):
            raise RowError(f"row of group {self.group_id!r}: no token is trained")
        if self.loss_mask[0]:
            raise RowError(f"row of group {self.group_id!r}: nothing precedes its first token")
        if min(self.token_ids) < 0:
            raise RowError(f"row of group {self.group_id!r}: negative token id")
        for is_trained, logprob, advantage in zip(
            self.loss_mask, self.sampler_logprobs, self.advantages, strict=True
        ):
            if not math.isfinite(advantage) or (logprob is not None and not math.isfinite(logprob)):
                raise RowError(
                    f"row of group {self.group_id!r}: log-probabilities and advantages must be "
                    f"finite, got {logprob} and {advantage}; an unknown log-probability is None"
                )
            if not is_trained and (logprob is not None or advantage != 0.0):
                raise RowError(
                    f"row of group {self.group_id!r}: a token that is not trained has "
                    f"log-probability {logprob} and advantage {advantage}, expected None and 0"
                )

    @property
    def read_ids(self) -> tuple[int, ...]:
        """The tokens that a model has to read: nothing is predicted from the last trained one."""
        last = len(self.loss_mask) - 1 - self.loss_mask[::-1].index(True)
        return self.token_ids[:last]

    @property
    def has_signal(self) -> bool:
        """Whether a token with a known sampler log-probability has an advantage other than 0."""
        return any(
            advantage != 0.0 and logprob is not None
            for advantage, logprob in zip(self.advantages, self.sampler_logprobs, strict=True)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBatch:
    """The rows of one optimizer step, and an account of everything considered."""

    rows: tuple[TrainingRow, ...]
    num_groups: int
    num_rollouts: int
    num_trained_groups: int
    num_truncated: int  # rollouts of which a completion ran into the token limit
    skipped_groups: Mapping[SkipReason, int] = field(default_factory=dict)
    skipped_rollouts: Mapping[SkipReason, int] = field(default_factory=dict)
    ages: Mapping[int, int] = field(default_factory=dict)  # rows by staleness, where they have one

    def to_json(self) -> dict[str, Any]:
        """Return the counts, without the rows."""
        num_dated = sum(self.ages.values())
        total = sum(age * num for age, num in self.ages.items())
        return {
            "staleness_mean": total / num_dated if num_dated else None,
            "staleness_max": max(self.ages, default=None),
            "num_groups": self.num_groups,
            "num_trained_groups": self.num_trained_groups,
            "num_rollouts": self.num_rollouts,
            "num_rows": len(self.rows),
            "num_truncated": self.num_truncated,
            "skipped_groups": {reason.value: n for reason, n in self.skipped_groups.items()},
            "skipped_rollouts": {reason.value: n for reason, n in self.skipped_rollouts.items()},
        }


def rows_of(
    groups: Iterable[RolloutGroup],
    *,
    baseline: Baseline = "mean",
    normalize_std: bool = False,
    max_staleness: int | None = None,
) -> RowBatch:
    """Make the rows of every group that holds a contrast.

    Rollouts that cannot be trained on (unscored, empty, stale, without log-probabilities) leave
    their group *before* the advantages are computed: a group with such a rollout equals the group
    without it, and each group's advantages sum to zero over the rows that are trained.

    A completion cut off by the token limit (``finish_reason == "length"``) is a row like any
    other: it was really sampled and its grade says what it was worth, so it stays in numerator and
    denominator alike.

    Args:
        groups: what was rolled out for this step.
        baseline: see ``group_advantages``.
        normalize_std: see ``group_advantages``.
        max_staleness: rollouts that are older, or of unknown age, are left out; None keeps all.
    """
    rows: list[TrainingRow] = []
    skipped_groups: Counter[SkipReason] = Counter()
    skipped_rollouts: Counter[SkipReason] = Counter()
    ages: Counter[int] = Counter()
    num_groups = num_rollouts = num_truncated = 0
    for group in groups:
        num_groups += 1
        num_rollouts += len(group.rollouts)
        usable: list[Rollout] = []
        for rollout in group.rollouts:
            reason = skip_reason(rollout, max_staleness)
            if reason is None:
                usable.append(rollout)
            else:
                skipped_rollouts[reason] += 1
        advantages, group_reason = _advantages_or_reason(
            usable, baseline=baseline, normalize_std=normalize_std
        )
        if group_reason is not None:
            skipped_groups[group_reason] += 1
            skipped_rollouts[group_reason] += len(usable)
            continue
        num_truncated += sum(rollout.finish_reason == "length" for rollout in usable)
        ages.update(rollout.staleness for rollout in usable if rollout.staleness is not None)
        rows += [
            row_of(rollout, advantage, group_id=group.id)
            for rollout, advantage in zip(usable, advantages, strict=True)
        ]
    return RowBatch(
        rows=tuple(rows),
        num_groups=num_groups,
        num_rollouts=num_rollouts,
        num_trained_groups=num_groups - skipped_groups.total(),
        num_truncated=num_truncated,
        skipped_groups=dict(skipped_groups),
        skipped_rollouts={reason: n for reason, n in skipped_rollouts.items() if n},
        ages=dict(ages),
    )


def skip_reason(rollout: Rollout, max_staleness: int | None = None) -> SkipReason | None:
    """Say why a rollout cannot be trained on, or None when it can."""
    if rollout.reward is None:
        return SkipReason.ADVISORY if rollout.is_advisory else SkipReason.UNSCORED
    if rollout.is_withheld:
        return SkipReason.WITHHELD
    if not rollout.completion_token_ids:
        return SkipReason.EMPTY_COMPLETION
    if not rollout.prompt_token_ids:
        return SkipReason.NO_PROMPT
    logprobs = rollout.sampler_logprobs
    if logprobs is None or len(logprobs) != len(rollout.completion_token_ids):
        return SkipReason.NO_LOGPROBS
    if not any(_is_known(logprob) for logprob in logprobs):
        return SkipReason.NO_LOGPROBS
    age = rollout.staleness
    if max_staleness is not None and (age is None or age > max_staleness):
        return SkipReason.STALE
    return None


def row_of(rollout: Rollout, advantage: float, *, group_id: str) -> TrainingRow:
    """Lay one rollout out as a row; a non-finite log-probability becomes None: unknown."""
    num_prompt, num_completion = len(rollout.prompt_token_ids), len(rollout.completion_token_ids)
    logprobs = rollout.sampler_logprobs or ()
    return TrainingRow(
        group_id=group_id,
        token_ids=(*rollout.prompt_token_ids, *rollout.completion_token_ids),
        loss_mask=(False,) * num_prompt + (True,) * num_completion,
        sampler_logprobs=(None,) * num_prompt
        + tuple(logprob if _is_known(logprob) else None for logprob in logprobs),
        advantages=(0.0,) * num_prompt + (advantage,) * num_completion,
    )


def write_rows(path: Path, rows: Iterable[TrainingRow]) -> None:
    """Write one JSON object a line. Floats are written so that they read back as the same bits."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            record = {
                "group_id": row.group_id,
                "token_ids": row.token_ids,
                "loss_mask": [int(is_trained) for is_trained in row.loss_mask],
                "sampler_logprobs": row.sampler_logprobs,
                "advantages": row.advantages,
            }
            file.write(json.dumps(record, allow_nan=False) + "\n")


def read_rows(path: Path) -> tuple[TrainingRow, ...]:
    """Read what ``write_rows`` wrote.

    Raises:
        RowError: the file is missing, or a line is not a valid row; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RowError(f"cannot read training rows from {path}: {error}") from error
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            row = TrainingRow(
                group_id=record["group_id"],
                token_ids=tuple(record["token_ids"]),
                loss_mask=tuple(bool(flag) for flag in record["loss_mask"]),
                sampler_logprobs=tuple(record["sampler_logprobs"]),
                advantages=tuple(record["advantages"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RowError(f"line {number} of {path} is not a training row: {error}") from error
        rows.append(row)
    return tuple(rows)


def _is_known(logprob: float | None) -> bool:
    return logprob is not None and math.isfinite(logprob)


def _advantages_or_reason(
    usable: Sequence[Rollout], *, baseline: Baseline, normalize_std: bool
) -> tuple[list[float], SkipReason | None]:
    """Return one advantage per rollout, or the reason why the group teaches nothing."""
    rewards = [rollout.reward for rollout in usable if rollout.reward is not None]
    if len(rewards) < 2:
        return [], SkipReason.TOO_FEW
    advantages = group_advantages(rewards, baseline=baseline, normalize_std=normalize_std)
    if not advantages.any():
        return [], SkipReason.ZERO_SIGNAL
    return [float(advantage) for advantage in advantages], None
