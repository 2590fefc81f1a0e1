"""Whom the checks look at: a home, its settings if they can be read, and whether a service runs."""

import json
from dataclasses import dataclass
from pathlib import Path

import home as house
import settings as configuration
from agent.base_model import FOLDER
from memory.errors import ConfigError
from settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Patient:
    """One home."""

    home: Path
    settings: Settings | None  # None: they cannot be read
    settings_problem: str | None
    service_runs: bool

    @property
    def settings_file(self) -> Path:
        """Where the settings may lie."""
        return self.home / "denizen.toml"

    @property
    def model(self) -> Path | None:
        """The folder of the base model; None where only the engine or a hub knows it."""
        if self.settings is None:
            return None
        engine = self.settings.engine
        if engine.model is not None:
            folder = Path(engine.model).expanduser()
            return folder if folder.is_dir() else None
        return None if engine.urls else self.home / "models" / FOLDER


def admit(home: Path) -> Patient:
    """Read the settings and see whether a service runs; changes nothing."""
    settings, problem = None, None
    try:
        settings = configuration.load(home)
    except ConfigError as error:
        problem = error.message
    except OSError as error:
        problem = f"the settings cannot be read: {error}"
    return Patient(
        home=home,
        settings=settings,
        settings_problem=problem,
        service_runs=service_runs(home),
    )


def service_runs(home: Path) -> bool:
    """Say whether a service holds the home's lock."""
    if not (home / "denizen.lock").is_file():
        return False  # and none is made by looking
    try:
        with house.lock(home):
            return False
    except ConfigError:
        return True
    except OSError:
        return False  # not ours to open: the check of the home says so


def noted_url(home: Path) -> str | None:
    """Return the address that a service has left in the home."""
    try:
        return str(json.loads((home / "service.json").read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
