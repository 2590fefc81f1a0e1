"""A skill: a discovered task type, and what happened to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class SkillPolicy(StrEnum):
    """Whether a skill may be learned."""

    LEARN = "learn"
    PAUSED = "paused"
    LOCKED = "locked"


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    """A discovered task type."""

    id: int
    title: str
    created_at: datetime
    policy: SkillPolicy = SkillPolicy.LEARN
    task_key: str | None = None
    tenant: str | None = None
    key_terms: Sequence[str] = ()  # the most telling words of its texts
    is_kept: bool = False  # a person named, merged or split it: the system leaves it as it is
    num_episodes: int = 0
    num_graded: int = 0
    mean_outcome: float | None = None
    num_train_tasks: int = 0
    num_heldout_tasks: int = 0
    num_live_graded: int = 0  # graded episodes that cannot be replayed, and may be learned from
    has_live_contrast: bool = False  # whether their outcomes differ
    num_new_signal: int = 0  # graded episodes and new tasks since the last cycle on this skill


class SkillEvent(StrEnum):
    """What happened to a skill."""

    FOUNDED = "founded"
    MERGED_INTO = "merged_into"  # it became part of another
    ABSORBED = "absorbed"  # another became part of it
    SPLIT_FROM = "split_from"  # it was a part of another
    SPLIT_OFF = "split_off"  # a part of it became another
    RENAMED = "renamed"
    POLICY = "policy"
    JOINED = "joined"  # texts that waited, or were another skill's, were put under it
    LEFT = "left"  # texts that are like no others of it wait for a skill again
    ERASED = "erased"  # some of its texts were erased


@dataclass(frozen=True, kw_only=True, slots=True)
class SkillChange:
    """One event in a skill's history; append-only.

    Example:
        ``SkillChange(skill_id=7, created_at=…, actor="system", event=SkillEvent.SPLIT_FROM,
        other_id=2, detail="31 episodes")``
    """

    skill_id: int
    created_at: datetime
    actor: str  # "system" or "person"
    event: SkillEvent
    other_id: int | None = None
    detail: str | None = None
