"""What an adapter folder must hold: peft's two files, their contents checked without torch.

Reads bytes and says whether an engine may see them. Knows nothing of versions, nor of where
folders stand; nothing in a file is ever executed (safetensors and JSON only).
"""

import hashlib
import json
import math
import re
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from memory.errors import AdapterError

WEIGHTS_NAME = "adapter_model.safetensors"
CONFIG_NAME = "adapter_config.json"
MANIFEST_NAME = "manifest.json"

_WEIGHT_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_MAX_CONFIG_BYTES = 1 << 20
_UNSUPPORTED = {
    "alora_invocation_tokens",
    "alpha_pattern",
    "auto_mapping",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "rank_pattern",
    "target_parameters",
    "trainable_token_indices",
    "use_dora",
    "use_qalora",
    "use_rslora",
}
"""peft options that change what an adapter means; the engine refuses or ignores them."""


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
        base_shapes: the base model's linear layers (see ``linear_shapes``); None when its weights
            are not on this machine. With them every layer must be there in its exact shape; without
            them layers are compared with each other.

    Raises:
        AdapterError: names what was expected and what was found.
    """
    _check_files(folder)
    config_bytes = (folder / CONFIG_NAME).read_bytes()
    rank, alpha, targets = _read_config(config_bytes)
    weights = (folder / WEIGHTS_NAME).read_bytes()
    shapes = _read_weights(weights)
    _check_layers(shapes, rank, targets)
    if base_shapes is not None:
        _check_against_base(shapes, targets, base_shapes)
    return AdapterFacts(
        rank=rank,
        alpha=alpha,
        target_modules=targets,
        sha256=hashlib.sha256(weights).hexdigest(),
        config_sha256=hashlib.sha256(config_bytes).hexdigest(),
        size_bytes=len(weights),
    )


def linear_shapes(model_dir: Path) -> dict[str, tuple[int, int]]:
    """Read the base model's matrices from its file headers: module name to (outputs, inputs)."""
    shapes: dict[str, tuple[int, int]] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                shape = file.get_slice(name).get_shape()
                if name.endswith(".weight") and len(shape) == 2:
                    shapes[name.removesuffix(".weight")] = (shape[0], shape[1])
    return shapes


def _check_files(folder: Path) -> None:
    """Only the known names, only plain files: a pickle is refused even beside good weights."""
    if folder.is_symlink() or not folder.is_dir():
        raise AdapterError(f"adapter {folder.name}: expected a folder, found none")
    found = {path.name: path.lstat().st_mode for path in folder.iterdir()}
    required = {WEIGHTS_NAME, CONFIG_NAME}
    if not required <= found.keys() <= required | {MANIFEST_NAME}:
        raise AdapterError(
            f"adapter {folder.name}: expected the files {sorted(required)}, found {sorted(found)}"
        )
    if special := sorted(name for name, mode in found.items() if not stat.S_ISREG(mode)):
        raise AdapterError(f"adapter {folder.name}: expected plain files, but {special} are not")
    if (size := (folder / CONFIG_NAME).stat().st_size) > _MAX_CONFIG_BYTES:
        raise AdapterError(f"{CONFIG_NAME}: expected at most {_MAX_CONFIG_BYTES} bytes, has {size}")


def _read_config(content: bytes) -> tuple[int, int, tuple[str, ...]]:
    """Return rank, alpha and the sorted names of the target layers."""
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{CONFIG_NAME} is not JSON: {error}") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{CONFIG_NAME}: expected a LoRA adapter (peft_type LORA)")
    if used := sorted(name for name in _UNSUPPORTED if config.get(name)):
        raise AdapterError(f"{CONFIG_NAME}: expected a plain LoRA adapter, found {used} set")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{CONFIG_NAME}: expected bias none, found {config['bias']!r}")
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
        raise AdapterError(f"{CONFIG_NAME}: expected {name} as a number, found {value!r}")
    if not math.isfinite(value) or value != int(value) or value < 1:
        raise AdapterError(f"{CONFIG_NAME}: expected {name} as a whole number >= 1, found {value}")
    return int(value)


def _read_weights(content: bytes) -> dict[str, tuple[int, ...]]:
    """Return each tensor's shape; every number in it is finite."""
    try:
        tensors = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise AdapterError(f"{WEIGHTS_NAME} is broken or cut off: {error}") from error
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in tensors:
        if not _is_finite(name, tensor["dtype"], tensor["data"]):
            raise AdapterError(f"{WEIGHTS_NAME}: {name} holds numbers that are not finite")
        shapes[name] = tuple(tensor["shape"])
    return shapes


def _is_finite(name: str, dtype: str, data: bytes) -> bool:
    if dtype == "BF16":  # numpy has no bfloat16: infinities and NaN have all exponent bits set
        return not ((np.frombuffer(data, np.uint16) & 0x7F80) == 0x7F80).any()
    numpy_dtype = {"F32": np.float32, "F16": np.float16}.get(dtype)
    if numpy_dtype is None:
        raise AdapterError(
            f"{WEIGHTS_NAME}: {name} has type {dtype}, expected one of F32, F16, BF16"
        )
    return bool(np.isfinite(np.frombuffer(data, numpy_dtype)).all())


def _modules(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, dict[str, tuple[int, ...]]]:
    """Gather shapes by module: ``{"model.layers.0.self_attn.q_proj": {"A": …, "B": …}}``."""
    modules: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        match = _WEIGHT_NAME.fullmatch(name)
        if match is None:
            raise AdapterError(
                f"{WEIGHTS_NAME}: expected names like base_model.model.….lora_A.weight, "
                f"found {name[:200]!r}"
            )
        modules.setdefault(match["module"], {})[match["side"]] = shape
    return modules


def _check_layers(
    shapes: Mapping[str, tuple[int, ...]], rank: int, targets: tuple[str, ...]
) -> None:
    """Check A [rank, in] and B [out, rank] of each layer, and that no target is missing."""
    modules = _modules(shapes)
    for module, sides in sorted(modules.items()):
        shape_a, shape_b = sides.get("A"), sides.get("B")
        if shape_a is None or shape_b is None:
            raise AdapterError(f"{WEIGHTS_NAME}: {module} has only lora_{next(iter(sides))}")
        if len(shape_a) != 2 or len(shape_b) != 2 or shape_a[0] != rank or shape_b[1] != rank:
            raise AdapterError(
                f"{WEIGHTS_NAME}: {module} has shapes A {shape_a} and B {shape_b}, "
                f"expected [{rank}, inputs] and [outputs, {rank}]"
            )
    counts = Counter(module.rpartition(".")[2] for module in modules)
    if set(counts) != set(targets):
        raise AdapterError(
            f"{WEIGHTS_NAME}: expected weights for {list(targets)}, found {sorted(counts)}"
        )
    if len(set(counts.values())) != 1:
        raise AdapterError(
            f"{WEIGHTS_NAME}: expected every target in the same number of layers, "
            f"found {dict(counts)}"
        )


def _check_against_base(
    shapes: Mapping[str, tuple[int, ...]],
    targets: tuple[str, ...],
    base_shapes: Mapping[str, tuple[int, int]],
) -> None:
    """Every layer of the base model with a target's name is adapted, in the base's own shape."""
    found = {module: (sides["B"][0], sides["A"][1]) for module, sides in _modules(shapes).items()}
    expected = {
        module: shape
        for module, shape in base_shapes.items()
        if module.rpartition(".")[2] in targets
    }
    for module in sorted(expected.keys() | found.keys()):
        if expected.get(module) != found.get(module):
            raise AdapterError(
                f"the adapter does not fit the base model: {module} is expected as "
                f"{expected.get(module)} (outputs, inputs), found {found.get(module)}"
            )
