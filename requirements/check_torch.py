"""Say what to do when the installed torch was built for other hardware than the chosen engine.

A CUDA build without the CUDA libraries does not import, so the import itself is the test. Called by
``make`` with ``cpu`` or ``gpu`` after an installation; it changes nothing.
"""

import sys
from importlib.metadata import version

ADVICE = {
    "cpu": (
        "the engine for CPUs needs torch's CPU build. Set PIP_EXTRA_INDEX_URL to PyTorch's CPU"
        " wheel index, then: rm -rf .venv && make serve"
    ),
    "gpu": (
        "nvidia-smi answers here, so torch's CUDA build is needed. Unset an index that holds CPU"
        " builds only, then: rm -rf .venv && make serve"
    ),
}


def problem(engine: str) -> str | None:
    """Return what is wrong with the installed torch for ``engine``; None if it fits."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch {version('torch')} does not import ({error})"
    built_for = "cpu" if torch.version.cuda is None else "gpu"
    if built_for == engine:
        return None
    return f"torch {version('torch')} is built for {built_for}"


if __name__ == "__main__":
    engine = sys.argv[1]
    found = problem(engine)
    if found:
        sys.exit(f"{found}; {ADVICE[engine]}")
