"""Follows a running learning cycle: a progress bar on a terminal, a line a step in a pipe."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from console.render import on_terminal

if TYPE_CHECKING:
    from console.client import ServiceClient

POLL_INTERVAL_S = 1.0
"""A step takes some twenty seconds on two cores, so a second is prompt and costs nothing."""

RUNNING = "running"


def follow_cycle(client: "ServiceClient", cycle_id: str, *, quiet: bool) -> Mapping[str, Any]:
    """Wait until a cycle has ended, showing each step unless ``quiet``; return it as last read.

    Raises:
        ServiceError, NoServiceError: the service stopped answering, and the cycle may have ended.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[phase]}", markup=False),
    )
    with Progress(*columns, disable=quiet or not on_terminal()) as progress:
        bar = progress.add_task(f"{cycle_id} starts", total=None, phase="")
        num_shown = 0
        while True:
            cycle: Mapping[str, Any] = client.get("cycles", cycle_id)
            for step in cycle["steps"][num_shown:]:
                if not (quiet or on_terminal()):
                    print(step_line(step), flush=True)
                progress.update(bar, description=step_line(step))
            num_shown = len(cycle["steps"])
            if cycle["state"] != RUNNING:
                return cycle
            at: Mapping[str, Any] = cycle.get("progress") or {}
            total = at.get("num_steps") or None
            progress.update(bar, completed=num_shown, total=total, phase=at.get("phase", ""))
            time.sleep(POLL_INTERVAL_S)


def progress_line(progress: Mapping[str, Any] | None) -> str:
    """Say where a running cycle is: ``step 3 of 12: practising``."""
    if progress is None:
        return "starting"
    return f"step {progress['step']} of {progress['num_steps']}: {progress['phase']}"


def step_line(step: Mapping[str, Any]) -> str:
    """Say a step in one line: ``step 3: reward 0.312, 2 of 8 groups without contrast, 21 s``."""
    receipt = step["receipt"]
    parts = []
    if (reward := receipt.get("reward_mean")) is not None:
        parts.append(f"reward {reward:.3f}")
    if (num_groups := receipt.get("num_groups")) is not None:
        num_equal = receipt.get("skipped_groups", {}).get("zero_signal", 0)
        parts.append(f"{num_equal} of {num_groups} groups without contrast")
    if (seconds := receipt.get("seconds")) is not None:
        parts.append(f"{seconds:.0f} s")
    return f"step {step['index']}: {', '.join(parts) or 'no figures'}"
