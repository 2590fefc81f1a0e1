"""Why vLLM ended or did not start, in one line that a person can act on.

Reads the exit status, vLLM's last lines and the kernel's count of kills; starts and ends nothing.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

KILLED = 128 + signal.SIGKILL
"""The status that the leash gives for a program that SIGKILL ended."""

LESS_MEMORY = (
    "lower engine.kv_cache_gib, engine.max_model_len or engine.gpu_memory_utilization, "
    "or choose a smaller model"
)
COMPUTES_NOTHING = "vLLM hangs: it answers its health check but computes nothing"
ANSWERS_NOTHING = "vLLM hangs: it does not even answer its health check"

_NO_MEMORY = re.compile(
    r"MemoryError|OutOfMemoryError|out of memory|std::bad_alloc|not enough memory"
    r"|Cannot allocate memory|No available memory for the cache blocks|Available memory on node",
    re.IGNORECASE,
)
_NAMED_ERROR = re.compile(r"\b[A-Z]\w*(?:Error|Exception)(?:: .*|$)")
_NO_CAUSE = re.compile(
    r"See root cause above|See stack trace|EngineDeadError"
    r"|\bINFO \d|\bWARNING \d|\(APIServer.*\bERROR \d"
)
"""Lines that point to another one, are ordinary, or tell of an error that the server survived."""
_LOST_A_PROCESS = re.compile(r"EngineDeadError|(?:died|exited) unexpectedly")

_CAUSES = (
    (r"address already in use", "its port was taken by another program meanwhile; start again"),
    (
        r"larger than the available KV cache memory",
        "the key-value cache holds no whole request: raise engine.kv_cache_gib "
        "or lower engine.max_model_len",
    ),
    (r"invalid tool call parser", "it does not know that parser: set engine.tool_call_parser"),
    (r"unrecognized arguments", "it does not know an argument: see engine.extra_args"),
    (r"invalid choice|expected one argument", "it does not take a value: see engine.extra_args"),
    (
        r"SafetensorError|safetensors_rust|not a valid model|does not appear to have a file",
        "it cannot read the model: engine.model must be a complete model folder or hub name",
    ),
)
"""What vLLM says, and what to do about it; the first that matches counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a run of vLLM ended.

    Example:
        ``Ending(status=137, lines=["INFO loading"], num_oom_kills=1)``
    """

    status: int  # 128 + n when signal n ended it
    lines: Sequence[str]  # the last ones that it printed
    num_oom_kills: int | None  # by the kernel while it ran; None: the kernel does not say

    def reason(self) -> str:
        """Return one line: out of memory, killed, or crashed, by what, and what to do."""
        lost = _last(_LOST_A_PROCESS, self.lines) is not None
        if self.num_oom_kills and (self.status == KILLED or lost):
            return f"vLLM ran out of memory: the kernel killed it; {LESS_MEMORY}"
        if (line := _last(_NO_MEMORY, _causes(self.lines))) is not None:
            return f"vLLM ran out of memory ({line}); {LESS_MEMORY}"
        if self.status == KILLED and self.num_oom_kills is None:
            return f"vLLM was killed, as the kernel does when memory runs out; if so, {LESS_MEMORY}"
        if self.status == KILLED:
            return "vLLM was killed (SIGKILL), and not by the kernel for want of memory"
        details = [
            f"vLLM crashed with status {self.status}",
            "one of its processes ended" if lost else None,
            _last(_NAMED_ERROR, _causes(self.lines)),
            advise(self.lines),
        ]
        return "; ".join(detail for detail in details if detail)


def advise(lines: Sequence[str]) -> str | None:
    """Return what to do about the commonest reasons why vLLM does not start."""
    text = "\n".join(_causes(lines))
    return next((what for said, what in _CAUSES if re.search(said, text, re.IGNORECASE)), None)


def _causes(lines: Sequence[str]) -> list[str]:
    """Return the lines that may say why vLLM ended."""
    return [line for line in lines if not _NO_CAUSE.search(line)]


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    """Return the last match, to the end of its line; a traceback repeats its cause at its end."""
    for line in reversed(lines):
        if (match := pattern.search(line)) is not None:
            return line[match.start() :].strip()[:300]
    return None
