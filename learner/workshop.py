"""What a learning cycle works with, and how far it is; no sequence.

The parts are passed in by the service; each has a module of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from learner.curriculum import LearnerConfig
from learner.gate import GateConfig
from learner.pointer import Pointer
from learner.registry import Registry
from learner.rollouts import Practice
from learner.sources import RowSource
from learner.training_process import TrainingProcess
from memory.store import Store


class Weights(Protocol):
    """What lets the engine answer with weights that have no version yet."""

    async def load_ephemeral(self, name: str, path: Path) -> None:
        """Make an adapter folder answer under a name of its own."""

    def unload(self, name: str) -> None:
        """Forget it again, once nothing uses it any more."""

    async def publish(self, version: str) -> None:
        """Verify, load and probe a version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workshop:
    """What a cycle works with."""

    store: Store
    registry: Registry
    pointer: Pointer
    practice: Practice
    rows: RowSource  # where a step's rows come from
    extra_rows: Sequence[RowSource] = ()  # what is added to a step that has rows of its own
    weights: Weights
    open_training: Callable[[Path | None], TrainingProcess]  # from the adapter to continue from
    work_dir: Path
    learner: LearnerConfig
    gate: GateConfig
    promotes_by_itself: bool


@dataclass(slots=True)
class Progress:
    """Where the cycle is, for people who watch."""

    phase: str = "starting"
    step: int = 0
    num_steps: int = 0
