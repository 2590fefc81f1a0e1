"""LoRA layers as vLLM lays them out, and the formula row by row."""

import torch

from agent.grouped_lora import pack_a, pack_b

NUM_SLOTS, RANK, WIDTH_IN, WIDTH_OUT = 3, 4, 6, 5


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def reference(y, x, a, b, slots, scale, add_inputs=True):
    """One row at a time, as the formula says: y[n] += scale * (B[slot] @ (A[slot] @ x[n]))."""
    result = y.clone()
    for row, slot in enumerate(slots):
        delta = torch.zeros_like(y[row])
        if slot >= 0:
            delta = scale * (b[slot, 0] @ (a[slot, 0] @ x[row]))
        result[row] = result[row] + delta if add_inputs else delta
    return result


def layer(
    sizes: tuple[int, ...], *, num_slots: int = NUM_SLOTS, dtype: torch.dtype = torch.float32
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return A and B of a layer with one slice per size, as vLLM would have them."""
    a = [random(num_slots, 1, RANK, WIDTH_IN, seed=30 + i, dtype=dtype) for i in range(len(sizes))]
    b = [random(num_slots, 1, size, RANK, seed=40 + i, dtype=dtype) for i, size in enumerate(sizes)]
    return a, b


def packed(a, b):
    """Pack zeros, then write the adapters through the views, as vLLM does."""
    packed_a, packed_b = (
        pack([torch.zeros_like(part) for part in parts])
        for pack, parts in ((pack_a, a), (pack_b, b))
    )
    for views, parts in ((packed_a, a), (packed_b, b)):
        for view, part in zip(views, parts, strict=True):
            view.copy_(part)
    return packed_a, packed_b
