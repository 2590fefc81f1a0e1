"""LoRA products for a batch whose rows use different adapters, or none.

Rows are grouped by adapter, and each group takes its matrix products at once. Plain torch: it knows
nothing of vLLM, whose layouts it takes as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import torch

Weights: TypeAlias = Sequence[torch.Tensor]
"""One tensor per slice of a fused layer (q, k, v), each ``[slots, 1, rows, columns]``."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """The rows of one step that use the adapter in ``slot``."""

    slot: int
    rows: slice | torch.Tensor | None  # a slice where they are consecutive; None: every row


class PackedWeights(tuple[torch.Tensor, ...]):
    """One layer's A or B: vLLM's tensor per slice, all of them views into one buffer.

    vLLM writes an adapter through the views; a step reads ``matrices``. So the slices of a fused
    layer (q, k, v) take one product instead of three, without a copy that could go stale.
    """

    matrices: tuple[
        torch.Tensor, ...
    ]  # per slot: A as [in, slices * rank], B as [slices * rank, out]


def pack_a(parts: Weights) -> PackedWeights:
    """Lay the A of a layer's slices side by side; ``parts`` are zeros, as vLLM made them.

    Args:
        parts: per slice [slots, 1, rank, in].
    """
    num_slots, _, rank, width = parts[0].shape
    buffer = parts[0].new_zeros(num_slots, 1, len(parts) * rank, width)
    packed = PackedWeights(buffer.tensor_split(len(parts), dim=2))
    packed.matrices = tuple(slot[0].T for slot in buffer)
    return packed


def pack_b(parts: Weights) -> PackedWeights:
    """Lay the B of a layer's slices along a diagonal: slice i of A's product meets slice i of B.

    Args:
        parts: per slice [slots, 1, out, rank].
    """
    num_slots, _, _, rank = parts[0].shape
    sizes = [part.shape[2] for part in parts]
    buffer = parts[0].new_zeros(num_slots, 1, len(parts) * rank, sum(sizes))
    offsets = [0, *accumulate(sizes[:-1])]
    packed = PackedWeights(
        rows.narrow(3, offset, size).transpose(2, 3)
        for rows, offset, size in zip(
            buffer.tensor_split(len(parts), dim=2), offsets, sizes, strict=True
        )
    )
    packed.matrices = tuple(slot[0] for slot in buffer)
    return packed


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
        if rows.shape[0] == slots_N.shape[0]:
            groups.append(RowGroup(slot, None))
        elif end - first == rows.shape[0]:
            groups.append(RowGroup(slot, slice(first, end)))
        else:
            groups.append(RowGroup(slot, rows))
    return tuple(groups)


def add_lora(
    y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, group: RowGroup
) -> None:
    """Add ``x[row] @ a @ b`` to ``y[row]`` for the rows of one group.

    Sum and product are rounded once, for consecutive and for scattered rows alike, so that a
    request gets the same bits alone and in a mixed batch.

    Args:
        y: [N, out], changed in place.
        x: [N, in].
        a: [in, rank].
        b: [rank, out].
        group: the rows.
    """
    if group.rows is None:
        y.addmm_(x @ a, b)
    elif isinstance(group.rows, slice):
        y[group.rows].addmm_(x[group.rows] @ a, b)
    else:
        y[group.rows] = torch.addmm(y[group.rows], x[group.rows] @ a, b)


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
        rows = slice(None) if group.rows is None else group.rows
        hidden = x[rows] @ a[group.slot, 0].to(x.dtype).T
        y[rows] = (hidden * scale).to(y.dtype)


def expand(
    y: torch.Tensor,
    hidden: torch.Tensor,
    b: torch.Tensor,
    groups: Sequence[RowGroup],
    *,
    add_inputs: bool,
) -> None:
    """Add ``hidden[row] @ b[slot].T`` to ``y[row]``, or set it.

    The delta of a row without an adapter is zero. Model and adapter may pad the output
    differently: only the columns that both have are computed.

    Args:
        y: [N, out], changed in place; a slice of a fused layer's output.
        hidden: [N, rank].
        b: [slots, 1, out, rank].
        groups: the rows of each adapter.
        add_inputs: False overwrites ``y``.
    """
    width = min(b.shape[2], y.shape[1])
    if not add_inputs:
        y[:, : b.shape[2]].zero_()
    for group in groups:
        rows = slice(None) if group.rows is None else group.rows
        y[rows, :width] += hidden[rows].to(y.dtype) @ b[group.slot, 0, :width].to(y.dtype).T
