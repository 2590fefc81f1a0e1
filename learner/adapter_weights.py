"""What ``adapter_model.safetensors`` must hold: finite numbers, in the shapes that LoRA has.

Reads without torch and without taking the file into memory. Knows nothing of configuration files.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from memory.errors import AdapterError

WEIGHTS_NAME = "adapter_model.safetensors"

_TENSOR_NAME = re.compile(
    r"base_model\.model\.(?P<module>[\w.]+)\.lora_(?P<side>[AB])\.weight", re.ASCII
)
_NUMPY_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
"""numpy has no bfloat16: its bits are looked at."""

_BF16_EXPONENT = 0x7F80
"""Infinities and NaN have all exponent bits set."""

Shape = tuple[int, ...]
Layers = dict[str, dict[str, Shape]]
"""Shapes by module and side: ``{"model.layers.0.self_attn.q_proj": {"A": (16, 576), "B": …}}``."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Where one tensor lies in the file."""

    name: str
    dtype: str
    shape: Shape
    begin: int  # bytes from the start of the file
    end: int


def read_layers(path: Path) -> Layers:
    """Read the shapes of a weights file; every number in it is finite.

    Raises:
        AdapterError: the file is broken or cut off, or holds something else than LoRA weights.
    """
    layers: Layers = {}
    tensors = _tensors(path)
    for tensor in tensors:
        match = _TENSOR_NAME.fullmatch(tensor.name)
        if match is None:
            raise AdapterError(
                f"{WEIGHTS_NAME}: expected names like base_model.model.….lora_A.weight, "
                f"found {tensor.name[:200]!r}"
            )
        if tensor.dtype not in _NUMPY_TYPES:
            raise AdapterError(
                f"{WEIGHTS_NAME}: {tensor.name} has type {tensor.dtype}, "
                f"expected one of {', '.join(_NUMPY_TYPES)}"
            )
        layers.setdefault(match["module"], {})[match["side"]] = tensor.shape
    _check_finite(path, tensors)
    return layers


def check_layers(layers: Layers, rank: int, targets: Sequence[str]) -> None:
    """Check A [rank, in] and B [out, rank] of each layer, and that layers and targets agree.

    Raises:
        AdapterError: names what was expected and what was found.
    """
    for module, sides in sorted(layers.items()):
        shape_a, shape_b = sides.get("A"), sides.get("B")
        if shape_a is None or shape_b is None:
            raise AdapterError(
                f"{WEIGHTS_NAME}: expected lora_A and lora_B of {module}, "
                f"found only lora_{next(iter(sides))}"
            )
        if len(shape_a) != 2 or len(shape_b) != 2 or shape_a[0] != rank or shape_b[1] != rank:
            raise AdapterError(
                f"{WEIGHTS_NAME}: {module} has shapes A {shape_a} and B {shape_b}, "
                f"expected [{rank}, inputs] and [outputs, {rank}]"
            )
    missing = [t for t in targets if not any(_is_target(module, [t]) for module in layers)]
    strays = [module for module in layers if not _is_target(module, targets)]
    if missing or strays:
        found = sorted({module.rpartition(".")[2] for module in layers})
        raise AdapterError(
            f"{WEIGHTS_NAME}: expected weights for {list(targets)!s:.500}, found {found}"
        )


def check_against_base(
    layers: Layers, targets: Sequence[str], base_shapes: Mapping[str, tuple[int, int]]
) -> None:
    """Check that every layer of the base model that is a target is there, in the base's own shape.

    Raises:
        AdapterError: names the first layer that is not.
    """
    found = {module: (sides["B"][0], sides["A"][1]) for module, sides in layers.items()}
    expected = {m: shape for m, shape in base_shapes.items() if _is_target(m, targets)}
    for module in sorted(expected.keys() | found.keys()):
        if expected.get(module) != found.get(module):
            raise AdapterError(
                f"the adapter does not fit the base model: {module} is expected as "
                f"{expected.get(module)} (outputs, inputs), found {found.get(module)}"
            )


def _is_target(module: str, targets: Sequence[str]) -> bool:
    """Say whether peft would adapt a module: a target is its whole name, or the end of it."""
    return any(module == target or module.endswith(f".{target}") for target in targets)


def _tensors(path: Path) -> list[_Tensor]:
    """Read the header, which safetensors' own reader has found to describe the file exactly."""
    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
    except (SafetensorError, OSError, ValueError) as error:
        raise AdapterError(f"{WEIGHTS_NAME} is broken or cut off: {error}") from error
    header.pop("__metadata__", None)
    tensors = []
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors.append(_Tensor(name, entry["dtype"], tuple(entry["shape"]), begin, end))
    return tensors


def _check_finite(path: Path, tensors: Sequence[_Tensor]) -> None:
    content: npt.NDArray[Any] = np.memmap(path, np.uint8, mode="r")
    for tensor in tensors:
        numbers = content[tensor.begin : tensor.end].view(_NUMPY_TYPES[tensor.dtype])
        if tensor.dtype == "BF16":
            is_finite = ((numbers & _BF16_EXPONENT) != _BF16_EXPONENT).all()
        else:
            is_finite = np.isfinite(numbers).all()
        if not is_finite:
            raise AdapterError(f"{WEIGHTS_NAME}: {tensor.name} holds numbers that are not finite")
