"""vLLM processes with a program of the test's choice in vLLM's place."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from agent.engine import VllmProcess

FAKE_ENGINE = ("-m", "tests.fake_engine", "--port", "{port}")


class StandIn(VllmProcess):
    """The process under test; what it starts is the fake engine, or Python code."""

    program: tuple[str, ...] = FAKE_ENGINE

    def command(self) -> list[str]:
        return [sys.executable, *(word.replace("{port}", str(self.port)) for word in self.program)]


Make: TypeAlias = Callable[..., StandIn]


def pid_of_child(engine: VllmProcess) -> int:
    assert engine._leash is not None
    listed = subprocess.run(
        ["pgrep", "-P", str(engine._leash.pid)], capture_output=True, text=True, check=True
    )
    return int(listed.stdout)


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
