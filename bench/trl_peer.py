"""TRL's GRPOTrainer, in an environment of its own, as what the trainer is compared with.

The environment is made on demand in the system's folder for temporary files and kept there, with
torch, transformers and peft as the CPU lock pins them. Run as a program in that environment, this
module makes optimizer steps on given rollouts, or works losses out; it imports nothing of Denizen.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

VERSION = "1.16.0"
LOCK = Path(__file__).parents[1] / "requirements/cpu.lock"
PINNED = ("torch", "transformers", "peft", "accelerate")


def install() -> Path:
    """Return the Python of an environment that has TRL; the first time takes minutes."""
    folder = Path(tempfile.gettempdir()) / f"denizen-bench-trl-{VERSION}"
    python = folder / "bin/python"
    complete = folder / "complete"
    if not complete.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", f"trl=={VERSION}", *PINNED]
        subprocess.run([*command, "-c", str(LOCK)], check=True, stdout=sys.stderr)
        complete.touch()
    return python


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Run a task (see ``main``) in TRL's environment and return what it found."""
    command = [str(install()), str(Path(__file__))]
    ended = subprocess.run(
        command, input=json.dumps(task), stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found
