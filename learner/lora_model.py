"""The base model with one adapter on it, and the adapter's two files in peft's format.

Knows nothing of losses or optimizers. The base is frozen; the adapter's weights are float32.
"""

import json
from pathlib import Path
from typing import Any

import torch
from peft import (
    LoraConfig,
    PeftModel,
    get_peft_model,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from peft.tuners.lora import Linear as LoraLinear
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import GradientCheckpointingLayer

from learner import tree_attention
from learner.adapter_format import CONFIG_NAME
from learner.adapter_weights import WEIGHTS_NAME
from learner.decoder_layers import replace_layers
from learner.errors import TrainingError
from learner.trainer_config import TrainerConfig
from memory.errors import AdapterError

_NAMES = {"rank": "r", "alpha": "lora_alpha", "target_modules": "target_modules"}
"""What two adapters share when one continues the other: our name, peft's name."""


def load_model(model_dir: Path, config: TrainerConfig) -> PeftModel:
    """Load the frozen base and put an adapter on it that changes nothing yet (B is zero).

    Raises:
        TrainingError: the base model cannot be loaded.
        AdapterError: it has no layers with the target names.
    """
    try:
        base = AutoModelForCausalLM.from_pretrained(
            model_dir,
            dtype=getattr(torch, config.dtype),
            attn_implementation=tree_attention.NAME,
            local_files_only=True,
        )
    except (OSError, ValueError) as error:
        raise TrainingError(f"cannot load the base model from {model_dir}: {error}") from error
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=list(config.target_modules),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    try:
        model = get_peft_model(base, lora)
    except ValueError as error:
        raise AdapterError(f"cannot put an adapter on {model_dir.name}: {error}") from error
    assert isinstance(model, PeftModel)
    causal_lm: Any = model.get_base_model()
    if isinstance(causal_lm.get_output_embeddings(), LoraLinear):
        raise AdapterError("the vocabulary projection cannot carry an adapter here")
    model.eval()  # no dropout: trainer and sampler must be the same function
    replace_layers(model, LoraLinear)
    if config.gradient_checkpointing:
        _checkpoint_layers(model)
    return model


def _checkpoint_layers(model: PeftModel) -> None:
    """Switch gradient checkpointing on, which transformers ties to a layer's training mode."""
    base: Any = model.get_base_model()
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in base.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True  # of the layer alone: dropout inside it stays off


def continuing(config: TrainerConfig, folder: Path) -> TrainerConfig:
    """Return the settings with rank, alpha and layers of the adapter that is to be continued.

    Raises:
        AdapterError: its configuration cannot be read.
    """
    try:
        found = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
        shape = {own: found[name] for own, name in _NAMES.items()}
        return TrainerConfig.model_validate(config.model_dump() | shape)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(f"cannot read the parent adapter {folder.name}: {error}") from error


def load_adapter(model: PeftModel, folder: Path) -> None:
    """Copy an earlier adapter's weights into the model's.

    Raises:
        AdapterError: it does not fit; names expected and found.
    """
    try:
        state = load_file(folder / WEIGHTS_NAME)
    except (OSError, ValueError, SafetensorError) as error:
        raise AdapterError(f"cannot read the parent adapter {folder.name}: {error}") from error
    own = get_peft_model_state_dict(model)
    for name in sorted(own.keys() | state.keys()):
        expected_shape = tuple(own[name].shape) if name in own else None
        found_shape = tuple(state[name].shape) if name in state else None
        if expected_shape != found_shape:
            raise AdapterError(
                f"parent adapter {folder.name}: {name} is expected in shape {expected_shape}, "
                f"found {found_shape}"
            )
    set_peft_model_state_dict(model, state)


def save_adapter(model: PeftModel, folder: Path, config: TrainerConfig, *, base_name: str) -> None:
    """Write the adapter into an existing folder, as peft and vLLM read it.

    The configuration is written here and not by peft: sorted and without paths, so that equal
    runs give equal bytes.
    """
    state = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in get_peft_model_state_dict(model).items()
    }
    save_file(state, folder / WEIGHTS_NAME, metadata={"format": "pt"})
    fields = {
        "lora_alpha": config.alpha,
        "r": config.rank,
        "target_modules": sorted(config.target_modules),
        "base_model_name_or_path": base_name,
        "bias": "none",
        "inference_mode": True,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    text = json.dumps(fields, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG_NAME).write_text(text, encoding="utf-8")
