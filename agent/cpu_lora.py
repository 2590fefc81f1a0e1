"""vLLM plugin that makes several LoRA adapters on one CPU engine right and fast.

vLLM 0.32 serves LoRA on the CPU with ``PunicaWrapperCPU``, whose operators
(``vllm.lora.ops.torch_ops``) gather the adapter's whole weight once per *token* and index slot -1,
the last one, for tokens without an adapter. ``bench/cpu_lora.py`` measures what comes of it:

- wrong: with every adapter slot in use, a request for the base model that shares a batch with
  adapter requests is answered by the adapter in the last slot;
- slow: a fifth of the base model's tokens per second at 64 concurrent requests.

``GroupedPunicaWrapper`` takes its place. The rows of a step are grouped by adapter once, not in
every layer; a layer takes two matrix products per adapter in the batch, also where vLLM fuses
several layers into one (``PackedWeights``); rows without an adapter are not touched. vLLM finds it
through the entry point group ``vllm.general_plugins`` in each of its processes.
``DENIZEN_CPU_LORA=0`` switches it off. This module runs inside vLLM only, and knows nothing of
Denizen; the arithmetic is in ``agent/grouped_lora.py``.
"""

import functools
import importlib
import inspect
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from agent.grouped_lora import (
    PackedWeights,
    Weights,
    add_lora,
    expand,
    group_rows,
    pack_a,
    pack_b,
    shrink,
)

_TARGET = "vllm.lora.punica_wrapper.punica_cpu"
_OPERATORS = {
    "update_metadata": ("self", "mapping", "lora_index_to_id", "max_loras", "vocab_size", "kwargs"),
    "add_shrink": ("self", "y", "x", "lora_a_stacked", "scale", "kwargs"),
    "add_expand": (
        *("self", "y", "x", "lora_b_stacked", "output_slices"),
        *("offset_start", "add_inputs", "kwargs"),
    ),
    "add_lora_embedding": ("self", "y", "x", "lora_b_stacked", "add_inputs", "kwargs"),
    "add_lora_linear": (
        *("self", "y", "x", "lora_a_stacked", "lora_b_stacked"),
        *("scale", "output_slices", "buffer", "kwargs"),
    ),
    "add_lora_logits": (
        *("self", "y", "x", "lora_a_stacked", "lora_b_stacked"),
        *("scale", "buffer", "kwargs"),
    ),
}
"""Parameters of the replaced operators, as vLLM 0.32 has them."""

_LAYERS = {
    "vllm.lora.layers.base_linear": "BaseLinearLayerWithLoRA",
    "vllm.lora.layers.column_parallel_linear": "MergedColumnParallelLinearWithLoRA",
}
"""The layers that create adapter weights; vLLM's other linear layers inherit from these."""

_CREATION = {"create_lora_weights": ("self", "max_loras", "lora_config", "model_config")}


def _grouped_wrapper(base: type[Any]) -> type[Any]:
    """Return ``base`` (vLLM's ``PunicaWrapperCPU``) with its operators replaced by grouped ones."""

    class GroupedPunicaWrapper(base):  # type: ignore[misc]  # vLLM is untyped here
        """LoRA operators that work per adapter instead of per token."""

        def update_metadata(self, *args: Any, **kwargs: Any) -> None:
            super().update_metadata(*args, **kwargs)
            self._token_groups = group_rows(self.token_lora_indices)
            self._sampler_groups = group_rows(self.sampler_indices)

        def add_shrink(
            self, y: Weights, x: torch.Tensor, lora_a_stacked: Weights, scale: float, **_: Any
        ) -> None:
            x = x.view(-1, x.shape[-1])
            for part, a in zip(y, lora_a_stacked, strict=True):
                shrink(part.view(-1, part.shape[-1]), x, a, scale, self._token_groups)

        def add_expand(
            self,
            y: torch.Tensor,
            x: Weights,
            lora_b_stacked: Weights,
            output_slices: Sequence[int],
            offset_start: int = 0,
            add_inputs: bool = True,
            **_: Any,
        ) -> None:
            y = y.view(-1, y.shape[-1])
            offset = offset_start
            for part, b, size in zip(x, lora_b_stacked, output_slices, strict=True):
                columns = y[:, offset : offset + size]
                expand(columns, part, b, self._token_groups, add_inputs=add_inputs)
                offset += size

        def add_lora_embedding(
            self,
            y: torch.Tensor,
            x: torch.Tensor,
            lora_b_stacked: torch.Tensor,
            add_inputs: bool = True,
            **_: Any,
        ) -> None:
            expand(y, x, lora_b_stacked, self._token_groups, add_inputs=add_inputs)

        def add_lora_linear(
            self,
            y: torch.Tensor,
            x: torch.Tensor,
            lora_a_stacked: PackedWeights,
            lora_b_stacked: PackedWeights,
            scale: float,
            output_slices: Sequence[int],
            **_: Any,
        ) -> None:
            for group in self._token_groups:
                a, b = lora_a_stacked.matrices[group.slot], lora_b_stacked.matrices[group.slot]
                add_lora(y, x, a if scale == 1.0 else a * scale, b, group)

        def add_lora_logits(
            self,
            y: torch.Tensor,
            x: torch.Tensor,
            lora_a_stacked: torch.Tensor,
            lora_b_stacked: torch.Tensor,
            scale: float,
            **_: Any,
        ) -> None:
            x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
            hidden = x.new_empty(x.shape[0], lora_a_stacked.shape[2])
            shrink(hidden, x, lora_a_stacked, scale, self._sampler_groups)
            expand(y, hidden, lora_b_stacked, self._sampler_groups, add_inputs=True)

    return GroupedPunicaWrapper


def _pack_weights(layer: type[Any]) -> None:
    """Have ``layer`` keep its adapters as ``PackedWeights`` from the start."""
    create = layer.create_lora_weights

    @functools.wraps(create)
    def create_packed(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        self.lora_a_stacked = pack_a(self.lora_a_stacked)
        self.lora_b_stacked = pack_b(self.lora_b_stacked)

    layer.create_lora_weights = create_packed


def check_signatures(owner: type[Any], known: Mapping[str, tuple[str, ...]]) -> None:
    """Make sure that the methods to be replaced take the known parameters.

    Raises:
        RuntimeError: a method is missing or takes other parameters; it is named.
    """
    for name, parameters in known.items():
        method = getattr(owner, name, None)
        found = () if method is None else tuple(inspect.signature(method).parameters)
        if found != parameters:
            raise RuntimeError(
                f"denizen_cpu_lora does not know this vLLM's {owner.__name__}.{name}: it takes "
                f"{found}, known is {parameters}. Install the pinned vLLM; DENIZEN_CPU_LORA=0 "
                "starts it without the plugin, and then base and adapters in one batch can answer "
                "wrongly."
            )


def register() -> None:
    """Replace vLLM's CPU LoRA operators in this process; does nothing on other platforms or twice.

    Raises:
        RuntimeError: this vLLM's operators or layers are not the known ones.
    """
    platforms = importlib.import_module("vllm.platforms")
    if os.environ.get("DENIZEN_CPU_LORA") == "0" or not platforms.current_platform.is_cpu():
        return
    module: Any = importlib.import_module(_TARGET)
    if module.PunicaWrapperCPU.__name__ == "GroupedPunicaWrapper":
        return
    layers = [getattr(importlib.import_module(path), name) for path, name in _LAYERS.items()]
    check_signatures(module.PunicaWrapperCPU, _OPERATORS)
    for layer in layers:
        check_signatures(layer, _CREATION)
    module.PunicaWrapperCPU = _grouped_wrapper(module.PunicaWrapperCPU)
    for layer in layers:
        _pack_weights(layer)
    logging.getLogger("vllm.denizen").info("denizen_cpu_lora: CPU LoRA operators replaced")
