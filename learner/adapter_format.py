"""What an adapter folder must hold: peft's two files, their contents checked without torch.

Reads bytes and says whether an engine may see them. Knows nothing of versions, nor of where
folders stand; nothing in a file is ever executed (safetensors and JSON only).
"""

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.adapter_weights import WEIGHTS_NAME, check_against_base, check_layers, read_layers
from memory.errors import AdapterError

CONFIG_NAME = "adapter_config.json"
MANIFEST_NAME = "manifest.json"

_MAX_JSON_BYTES = 1 << 20
_MAX_NUMBER = 1_000_000
"""Far above any rank or alpha in use; keeps what is stored an integer of SQLite's."""

_PLAIN_OPTIONS = {
    "base_model_name_or_path",
    "bias",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "init_lora_weights",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "target_modules",
    "task_type",
}
"""peft options that leave an adapter a plain one. Any other that is set changes what the weights
mean (``use_dora``, ``rank_pattern``, ``modules_to_save``), names code (``auto_mapping``), or is not
known: the engine would refuse it, or ignore it."""

_PLAIN_INITS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Ways to begin training that leave the base model as it is; others (PiSSA, OLoRA, CorDA, LoftQ)
train against a base that was changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFacts:
    """What an adapter's two files say of themselves, after everything in them was checked."""

    rank: int
    alpha: int
    target_modules: tuple[str, ...]  # sorted
    sha256: str  # of adapter_model.safetensors
    config_sha256: str
    size_bytes: int  # of adapter_model.safetensors


def inspect(
    folder: Path, *, base_shapes: Mapping[str, tuple[int, int]] | None = None
) -> AdapterFacts:
    """Check an adapter folder and say what it holds.

    Args:
        folder: holds the weights, the configuration, and at most a manifest.
        base_shapes: the base model's linear layers (see ``fit.linear_shapes``); None when they
            need not be compared, as for what was sealed. With them every targeted layer must be
            there in its exact shape.

    Raises:
        AdapterError: names what was expected and what was found.
    """
    check_files(folder)
    rank, alpha, targets = _plain_lora(read_json(folder / CONFIG_NAME))
    layers = read_layers(folder / WEIGHTS_NAME)
    check_layers(layers, rank, targets)
    if base_shapes is not None:
        check_against_base(layers, targets, base_shapes)
    return AdapterFacts(
        rank=rank,
        alpha=alpha,
        target_modules=targets,
        sha256=_sha256(folder / WEIGHTS_NAME),
        config_sha256=_sha256(folder / CONFIG_NAME),
        size_bytes=(folder / WEIGHTS_NAME).stat().st_size,
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a small JSON object.

    Raises:
        AdapterError: it is too large, or no JSON object.
    """
    try:
        if (size := path.stat().st_size) > _MAX_JSON_BYTES:
            raise AdapterError(f"{path.name}: expected at most {_MAX_JSON_BYTES} bytes, has {size}")
        found = json.loads(path.read_bytes())
    except AdapterError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(f"{path.name} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise AdapterError(f"{path.name}: expected a JSON object")
    return found


def check_files(folder: Path) -> None:
    """Check names and kinds: a pickle is refused even beside good weights.

    Raises:
        AdapterError: there are other files than the known, or others than plain ones.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise AdapterError("expected a folder, found none")
    found = {path.name: path.lstat().st_mode for path in folder.iterdir()}
    required = {WEIGHTS_NAME, CONFIG_NAME}
    if not required <= found.keys() <= required | {MANIFEST_NAME}:
        raise AdapterError(f"expected the files {sorted(required)}, found {sorted(found)}")
    if special := sorted(name for name, mode in found.items() if not stat.S_ISREG(mode)):
        raise AdapterError(f"expected plain files, but {special} are not")


def _plain_lora(config: Mapping[str, Any]) -> tuple[int, int, tuple[str, ...]]:
    """Return rank, alpha and the sorted names of the target layers."""
    if config.get("peft_type") != "LORA":
        raise AdapterError(f"{CONFIG_NAME}: expected a LoRA adapter (peft_type LORA)")
    if used := sorted(name for name in config.keys() - _PLAIN_OPTIONS if config[name]):
        raise AdapterError(f"{CONFIG_NAME}: expected a plain LoRA adapter, found {used[:5]} set")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{CONFIG_NAME}: expected bias none, found {config['bias']!r:.80}")
    if (init := config.get("init_lora_weights")) not in _PLAIN_INITS:
        raise AdapterError(
            f"{CONFIG_NAME}: init_lora_weights is {init!r:.80}: it was trained against changed "
            "base weights; save it with peft's path_initial_model_for_weight_conversion"
        )
    targets = config.get("target_modules")
    if not (isinstance(targets, list) and targets and all(isinstance(t, str) for t in targets)):
        raise AdapterError(f"{CONFIG_NAME}: expected target_modules as a list of layer names")
    return (
        _positive_int(config, "r"),
        _positive_int(config, "lora_alpha"),
        tuple(sorted(set(targets))),
    )


def _positive_int(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AdapterError(f"{CONFIG_NAME}: expected {name} as a number, found {value!r:.80}")
    if value != value // 1 or not 1 <= value <= _MAX_NUMBER:
        raise AdapterError(
            f"{CONFIG_NAME}: expected {name} as a whole number from 1 to {_MAX_NUMBER}, "
            f"found {value}"
        )
    return int(value)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
