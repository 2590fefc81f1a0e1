"""Training in the service's own process, for tests of what leads to it and follows from it.

No optimizer and no torch, which takes seconds to start: a step reads its rows and leaves random
weights that fit the tiny model.
"""

from pathlib import Path
from typing import Any, Self

import numpy as np

from tests.learner.adapters import adapter_config, write_adapter
from tests.tiny_model import HIDDEN_SIZE, NUM_LAYERS

TARGET = "q_proj"


class QuickTraining:
    """Takes the place of ``learner.training_process.TrainingProcess``."""

    def __init__(self, **_: Any) -> None:
        """Take what a real one takes."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def step(
        self, rows_path: Path, out_dir: Path, *, keep_moments: bool = False
    ) -> dict[str, Any]:
        """Write an adapter."""
        rows = rows_path.read_text("utf-8").splitlines()
        rng = np.random.default_rng(len(rows))
        tensors = {}
        for layer in range(NUM_LAYERS):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{TARGET}"
            tensors[f"{prefix}.lora_A.weight"] = rng.random((2, HIDDEN_SIZE), np.float32)
            tensors[f"{prefix}.lora_B.weight"] = rng.random((HIDDEN_SIZE, 2), np.float32)
        out_dir.mkdir()
        write_adapter(out_dir, tensors, adapter_config(target_modules=[TARGET]))
        return {"trained_tokens": len(rows), "grad_norm": 1.0}

    async def effect(self) -> None:
        """Know nothing of it."""
