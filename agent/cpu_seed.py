"""vLLM plugin that keeps a CPU engine alive when a request brings a ``seed``.

vLLM 0.32 reads a long prompt over several steps. After a step whose token is thrown away it rewinds
the random generator of a seeded request with ``get_offset`` and ``set_offset``, which torch's CPU
generator does not have: the engine ends with "CPU Generator does not use offset", and every request
on it fails. Until the first token is kept nothing but the seed is in that generator, so seeding it
anew is the same rewind. This module runs inside vLLM only, and knows nothing of Denizen.
"""

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

_TARGET = "vllm.v1.worker.cpu_model_runner"
_METHOD = "_bookkeeping_sync"
_FAULT = "set_offset("


def reseeding(bookkeeping: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``GPUModelRunner._bookkeeping_sync``: seed discarded requests' generators anew.

    The wrapped method does not see these generators. A request that was preempted and is read again
    draws from its seed's start once more, which vLLM's CUDA path does not.
    """

    @functools.wraps(bookkeeping)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        generators = self.input_batch.generators
        is_discarded = self.discard_request_mask.np
        discarded = {row: generators.pop(row) for row in list(generators) if is_discarded[row]}
        for generator in discarded.values():
            generator.manual_seed(generator.initial_seed())
        try:
            return bookkeeping(self, *args, **kwargs)
        finally:
            generators.update(discarded)

    return wrapper


def register() -> None:
    """Mend the CPU model runner of this process; does nothing elsewhere, twice, or when mended.

    Raises:
        RuntimeError: this vLLM has no such method.
    """
    platforms = importlib.import_module("vllm.platforms")
    if not platforms.current_platform.is_cpu():
        return
    runner: Any = importlib.import_module(_TARGET).CPUModelRunner
    method = getattr(runner, _METHOD, None)
    if method is None:
        raise RuntimeError(f"denizen_cpu_seed does not know this vLLM: it has no {_METHOD}")
    if _METHOD in vars(runner) or _FAULT not in inspect.getsource(method):
        return
    setattr(runner, _METHOD, reseeding(method))
    logging.getLogger("vllm.denizen").info("denizen_cpu_seed: seeded requests are safe")
