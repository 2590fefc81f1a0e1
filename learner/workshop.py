"""What a learning cycle works with, and how far it is; no sequence.

The parts are passed in by the service; each has a module of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.curriculum import LearnerConfig
from learner.drift_proof import DriftProof
from learner.errors import CycleStoppedError
from learner.gate import GateConfig
from learner.live_groups import LiveGroups
from learner.live_proof import LiveProof
from learner.pointer import Pointer
from learner.registry import Registry
from learner.rollouts import Practice
from learner.sources import RowSource
from learner.training_process import TrainingProcess
from memory.store import Store

WHY_ERASED = "something that the cycle worked with was erased; what it had made of it is deleted"


class Weights(Protocol):
    """What lets the engine answer with weights that have no version yet."""

    async def load_ephemeral(self, name: str, path: Path) -> None:
        """Make an adapter folder answer under a name of its own."""

    def unload(self, name: str) -> None:
        """Forget it again, once nothing uses it any more."""

    async def publish(self, version: str) -> None:
        """Verify, load and probe a version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveWork:
    """What a cycle makes of work that cannot be replayed."""

    groups: LiveGroups
    proof: LiveProof
    promotes_by_itself: bool = False  # where recorded answers prove a candidate


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What a cycle works with."""

    store: Store
    registry: Registry
    pointer: Pointer
    practice: Practice
    rows: RowSource  # where a step's rows come from
    extra_rows: Sequence[RowSource] = ()  # what is added to a step that has rows of its own
    sampled_ahead: Sequence[RowSource] = ()
    """Of both: those that sample, where they do so while the step before is trained."""
    weights: Weights
    base_digest: str  # sha256 of the base model's weights
    open_training: Callable[[Path | None, Path | None], TrainingProcess]
    """From the adapter of the version to continue from, and from a step of the same cycle."""
    work_dir: Path
    learner: LearnerConfig
    gate: GateConfig
    promotes_by_itself: bool
    live: LiveWork | None = None  # None: only practice teaches
    drift: DriftProof | None = None  # None: drift limits nothing

    def check_erasure(self, cycle_id: str) -> None:
        """Stop a cycle where something was erased that it works with.

        Raises:
            CycleStoppedError: it was.
        """
        if self.store.cycles.is_hit_by_erasure(cycle_id):
            raise CycleStoppedError(WHY_ERASED)


@dataclass(slots=True)
class Progress:
    """Where the cycle is, for people who watch."""

    phase: str = "starting"
    step: int = 0
    num_steps: int = 0
