"""Random adapters for measurements: every linear layer of a model, no training needed."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from learner.adapter_format import CONFIG_NAME
from learner.adapter_weights import WEIGHTS_NAME
from learner.fit import linear_shapes

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, model: Path, *, seed: int, rank: int = 16, scale: float = 0.02
) -> Path:
    """Write an adapter that changes the model's answers but leaves them finite; returns its folder.

    Args:
        folder: made here.
        model: the base model's folder, whose shapes are taken.
        seed: another one makes another adapter.
        rank: of every layer.
        scale: of B; 0 makes an adapter without effect.
    """
    rng = np.random.default_rng(seed)
    tensors = {}
    for module, (num_outputs, num_inputs) in linear_shapes(model).items():
        if module.rpartition(".")[2] not in TARGETS:
            continue
        prefix = f"base_model.model.{module}"
        a = rng.standard_normal((rank, num_inputs), np.float32) / num_inputs**0.5
        tensors[f"{prefix}.lora_A.weight"] = a
        b = rng.standard_normal((num_outputs, rank), np.float32) * np.float32(scale)
        tensors[f"{prefix}.lora_B.weight"] = b
    folder.mkdir(parents=True)
    save_file(tensors, folder / WEIGHTS_NAME)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": list(TARGETS),
        "bias": "none",
    }
    (folder / CONFIG_NAME).write_text(json.dumps(config), encoding="utf-8")
    return folder
