"""What can break while the weights are changed.

``code`` is also the ``kind`` by which the training process names a failure to its parent.
"""

from memory.errors import DenizenError


class TrainingError(DenizenError, RuntimeError):
    """An optimizer step failed, or would not have changed anything; nothing was published."""

    code = "training"


class NoSignalError(DenizenError):
    """The rows hold nothing to learn from: no advantage differs from zero. Not a fault."""

    code = "no_signal"


class RowError(DenizenError, ValueError):
    """A rollout or a training row contradicts itself."""

    code = "rows"


class CycleStoppedError(DenizenError):
    """A cycle cannot go on, for a reason outside it. Not a fault."""

    code = "cycle_stopped"
