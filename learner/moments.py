"""AdamW's memory of earlier steps as a file beside an adapter folder, so that a run can go on.

An adapter's weights and these moments are all that the next step depends on: a run that was killed
and goes on from them ends with the same bytes as one that was not.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from learner.errors import TrainingError


def save(path: Path, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
    """Write the moments; the file appears under its name when it is complete and on disk."""
    tensors = {
        f"{name}/{kind}": value.detach().cpu().contiguous()
        for name, parameter in parameters.items()
        for kind, value in optimizer.state[parameter].items()
    }
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file(tensors, staging)
        with staging.open("rb") as file:
            os.fsync(file.fileno())
        staging.replace(path)
    finally:
        staging.unlink(missing_ok=True)


def load(path: Path, optimizer: torch.optim.Optimizer, parameters: Mapping[str, Tensor]) -> None:
    """Put moments that were saved for the same parameters back.

    Raises:
        TrainingError: there are none, or they are of another adapter's parameters.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"cannot go on from {path.name}: {error}") from error
    found = {name.rpartition("/")[0] for name in tensors}
    if found != parameters.keys():
        some = sorted(found ^ parameters.keys())[:3]
        raise TrainingError(f"cannot go on from {path.name}: it does not match at {some}")
    for name, parameter in parameters.items():
        kinds = (key.rpartition("/")[2] for key in tensors if key.rpartition("/")[0] == name)
        # Step counts stay where AdamW makes them, on the CPU.
        optimizer.state[parameter] = {
            kind: tensors[f"{name}/{kind}"].to("cpu" if kind == "step" else parameter.device)
            for kind in kinds
        }
