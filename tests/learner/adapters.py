"""Adapter folders made without torch: two layers, two targets, rank 2."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from learner.fit import Fit

TARGETS = {"q_proj": (6, 4), "down_proj": (4, 8)}  # (outputs, inputs)
BASE_SHAPES = {
    f"model.layers.{layer}.{'self_attn' if name == 'q_proj' else 'mlp'}.{name}": shape
    for layer in range(2)
    for name, shape in TARGETS.items()
}
FIT = Fit(
    base_digest="b" * 64,
    base_shapes=BASE_SHAPES,
    base_names=frozenset({"tiny-instruct"}),
    max_rank=4,
)


def adapter_tensors(*, rank: int = 2) -> dict[str, np.ndarray]:
    """Return one A and one B for each adapted layer."""
    rng = np.random.default_rng(0)
    tensors = {}
    for module, (num_outputs, num_inputs) in BASE_SHAPES.items():
        prefix = f"base_model.model.{module}"
        tensors[f"{prefix}.lora_A.weight"] = rng.random((rank, num_inputs), np.float32)
        tensors[f"{prefix}.lora_B.weight"] = rng.random((num_outputs, rank), np.float32)
    return tensors


def adapter_config(**changes: Any) -> dict[str, Any]:
    """Return a configuration that fits ``adapter_tensors()``."""
    fields = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": sorted(TARGETS),
        "bias": "none",
        "modules_to_save": None,
        "use_dora": False,
    }
    return fields | changes


def write_adapter(
    folder: Path,
    tensors: dict[str, np.ndarray] | None = None,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write both files into an existing folder."""
    save_file(
        adapter_tensors() if tensors is None else tensors, folder / "adapter_model.safetensors"
    )
    text = json.dumps(adapter_config() if config is None else config)
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")
    return folder
