"""An adapter as peft itself saves it, on the tiny model."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM


def save_with_peft(model_dir: Path, folder: Path, *, seed: int = 0, **options: Any) -> Path:
    """Write a LoRA adapter that changes what the model says; peft adds its README.md."""
    given: dict[str, Any] = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"]}
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **given | options))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    model.save_pretrained(folder)
    return folder
