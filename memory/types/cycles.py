"""A learning cycle: its stages, its steps, and how it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class CycleState(StrEnum):
    """Where a learning cycle is, or how it ended."""

    RUNNING = "running"
    PROMOTED = "promoted"  # the candidate is live
    PROPOSED = "proposed"  # the gate passed; a person decides
    REJECTED = "rejected"  # the gate found a loss
    INCONCLUSIVE = "inconclusive"  # the gate could not tell
    NO_SIGNAL = "no_signal"  # nothing to learn from; nothing was published
    FAILED = "failed"
    INTERRUPTED = "interrupted"  # it could not go on: the service ended, or its words were erased


@dataclass(frozen=True, kw_only=True, slots=True)
class Cycle:
    """One learning run: from a start version through steps and a gate to a verdict."""

    id: str
    created_at: datetime
    state: CycleState
    start_version: str
    skill_ids: Sequence[int]
    reason: str  # why it started
    ended_at: datetime | None = None
    candidate: str | None = None
    end_reason: str | None = None
    receipt: Mapping[str, Any] = field(default_factory=dict)
    gate: Mapping[str, Any] | None = None  # a GateReport as JSON
    base_digest: str | None = None  # sha256 of the base model's weights
    settings_sha256: str | None = None  # of the settings that decide what its steps do
    num_resumes: int = 0  # services that went on with it after another had ended
    num_deaths: int = 0  # of these, after one that was killed
    was_stopped: bool = False  # the service was stopped in an orderly way while it ran


class TaskRole(StrEnum):
    """What a cycle does with a task."""

    TRAIN = "train"  # may be practised
    HELDOUT = "heldout"  # proves a gain
    GUARD = "guard"  # of another skill: proves that it lost nothing
    REHEARSAL = "rehearsal"  # of another skill: practised, too, so that it loses nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleStage:
    """One sampling of a cycle: what is tried with one set of weights for one purpose.

    Example:
        ``CycleStage(cycle_id="cycle_0193-11", name="step-03")``
    """

    cycle_id: str
    name: str  # "before" and "after" on held-out tasks, "step-03" to learn from


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleStep:
    """One optimizer step and its receipt."""

    cycle_id: str
    index: int
    created_at: datetime
    receipt: Mapping[str, Any]
