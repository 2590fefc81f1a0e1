"""vLLM plugin that makes several LoRA adapters on one CPU engine right and fast.

vLLM 0.32 serves LoRA on the CPU with ``PunicaWrapperCPU``, whose operators
(``vllm.lora.ops.torch_ops``) gather the adapter's whole weight once per *token* and index slot -1,
the last one, for tokens without an adapter. Measured with SmolLM2-135M, rank 16 on all linear
layers, two cores:

- wrong: with every adapter slot in use, a request for the base model that shares a batch with
  adapter requests is answered by the adapter in the last slot (first token's log-probability -0.26
  instead of -0.42);
- slow: 64 concurrent requests reach 25 tokens/s with an adapter, 226 to 288 without.

``GroupedPunicaWrapper`` takes its place: the rows of a step are grouped by adapter once, each
adapter's product is computed once per layer for all its rows, and rows without an adapter are not
touched. vLLM finds it through the entry point group ``vllm.general_plugins`` in each of its
processes. ``DENIZEN_CPU_LORA=0`` switches it off. This module runs inside vLLM only, and knows
nothing of Denizen.
"""

import importlib
import inspect
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Weights: TypeAlias = Sequence[torch.Tensor]
"""One tensor per slice of a fused layer (q, k, v), each ``[slots, 1, rows, columns]``."""

_TARGET = "vllm.lora.punica_wrapper.punica_cpu"
_KNOWN_SIGNATURES = {
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
"""Parameters of the replaced methods, as vLLM 0.32 has them."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows of one step that use the adapter in ``slot``; a slice where they are consecutive."""

    slot: int
    rows: slice | torch.Tensor


def group_rows(slots_N: torch.Tensor) -> tuple[RowGroup, ...]:
    """Group the row numbers by adapter slot; rows of slot -1 (no adapter) are in no group.

    Args:
        slots_N: int64 [N], the adapter slot of each row, or -1.
    """
    groups = []
    for slot in torch.unique(slots_N).tolist():
        if slot < 0:
            continue
        rows = torch.nonzero(slots_N == slot).squeeze(1)
        first, end = int(rows[0]), int(rows[-1]) + 1
        consecutive = end - first == rows.shape[0]
        groups.append(RowGroup(slot, slice(first, end) if consecutive else rows))
    return tuple(groups)


def add_lora(
    y: torch.Tensor,
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scale: float,
    groups: Sequence[RowGroup],
) -> None:
    """Add ``scale * x[row] @ a[slot].T @ b[slot].T`` to ``y[row]``; other rows are not touched.

    Args:
        y: [N, out], changed in place; a slice of a fused layer's output.
        x: [N, in].
        a: [slots, 1, rank, in].
        b: [slots, 1, out, rank].
        scale: factor of the product.
        groups: the rows of each adapter.
    """
    for group in groups:
        hidden = x[group.rows] @ a[group.slot, 0].to(x.dtype).T
        _add_product(y, group, hidden * scale if scale != 1.0 else hidden, b)


def shrink(
    y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, scale: float, groups: Sequence[RowGroup]
) -> None:
    """Set ``y[row] = scale * x[row] @ a[slot].T``; rows without an adapter become zero.

    Args:
        y: [N, rank], overwritten.
        x: [N, in].
        a: [slots, 1, rank, in].
        scale: factor of the product.
        groups: the rows of each adapter.
    """
    y.zero_()
    for group in groups:
        hidden = x[group.rows] @ a[group.slot, 0].to(x.dtype).T
        y[group.rows] = (hidden * scale).to(y.dtype)


def expand(
    y: torch.Tensor,
    hidden: torch.Tensor,
    b: torch.Tensor,
    groups: Sequence[RowGroup],
    *,
    add_inputs: bool,
) -> None:
    """Add ``hidden[row] @ b[slot].T`` to ``y[row]``, or set it.

    The delta of a row without an adapter is zero.

    Args:
        y: [N, out], changed in place; a slice of a fused layer's output.
        hidden: [N, rank].
        b: [slots, 1, out, rank].
        groups: the rows of each adapter.
        add_inputs: False overwrites ``y``.
    """
    if not add_inputs:
        y[:, : b.shape[2]].zero_()
    for group in groups:
        _add_product(y, group, hidden[group.rows], b)


def _add_product(y: torch.Tensor, group: RowGroup, hidden: torch.Tensor, b: torch.Tensor) -> None:
    """Add ``hidden @ b[slot].T`` to the group's rows, in the columns that both have.

    Model and adapter may pad the output differently. The product is rounded before it is added,
    for consecutive and scattered rows alike, so that a request gets the same bits alone and in a
    mixed batch; a fused ``addmm_`` for the first was 15 % faster and moved first-token
    log-probabilities of a mixed batch by up to 0.15.
    """
    width = min(b.shape[2], y.shape[1])
    delta = hidden.to(y.dtype) @ b[group.slot, 0, :width].to(y.dtype).T
    if isinstance(group.rows, slice):
        y[group.rows, :width].add_(delta)
    else:
        y[group.rows, :width] += delta


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
            lora_a_stacked: Weights,
            lora_b_stacked: Weights,
            scale: float,
            output_slices: Sequence[int],
            **_: Any,
        ) -> None:
            x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
            offset = 0
            for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
                add_lora(y[:, offset : offset + size], x, a, b, scale, self._token_groups)
                offset += size

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
            add_lora(y, x, lora_a_stacked, lora_b_stacked, scale, self._sampler_groups)

    return GroupedPunicaWrapper


def check_signatures(wrapper: type[Any]) -> None:
    """Make sure that the operators to be replaced are the known ones.

    Raises:
        RuntimeError: an operator is missing or takes other parameters; it is named.
    """
    for name, known in _KNOWN_SIGNATURES.items():
        operator = getattr(wrapper, name, None)
        found = () if operator is None else tuple(inspect.signature(operator).parameters)
        if found != known:
            raise RuntimeError(
                f"denizen_cpu_lora does not know this vLLM's {wrapper.__name__}.{name}: it takes "
                f"{found}, known is {known}. Install the pinned vLLM; DENIZEN_CPU_LORA=0 starts it "
                "without the plugin, and then base and adapters in one batch can answer wrongly."
            )


def register() -> None:
    """Replace vLLM's CPU LoRA operators in this process; does nothing on other platforms or twice.

    Raises:
        RuntimeError: this vLLM's operators are not the known ones.
    """
    platforms = importlib.import_module("vllm.platforms")
    if os.environ.get("DENIZEN_CPU_LORA") == "0" or not platforms.current_platform.is_cpu():
        return
    module: Any = importlib.import_module(_TARGET)
    if module.PunicaWrapperCPU.__name__ == "GroupedPunicaWrapper":
        return
    check_signatures(module.PunicaWrapperCPU)
    module.PunicaWrapperCPU = _grouped_wrapper(module.PunicaWrapperCPU)
    logging.getLogger("vllm.denizen").info("denizen_cpu_lora: CPU LoRA operators replaced")
