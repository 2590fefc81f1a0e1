"""Mends what is safe to mend. Uninstalls nothing, and deletes nothing that anybody wrote."""

import shutil
from collections.abc import Callable
from pathlib import Path

import home as house
from agent.base_model import prepare_packaged_model
from doctor.finding import Finding
from doctor.home_folder import is_exposed, leftovers
from doctor.patient import admit, service_runs
from memory.errors import DenizenError


def repair(home: Path, progress: Callable[[str], None]) -> list[Finding]:
    """Mend what is safe; returns what was done, and what could not be.

    Args:
        home: the home folder; made when missing.
        progress: told in one line each what takes time.
    """
    done: list[Finding] = []
    for name, mend in (
        ("home", _make_home),
        ("secrets", _hide_secrets),
        ("leftovers", _clear_leftovers),
        ("model", lambda home: _prepare_model(home, progress)),
    ):
        try:
            what = mend(home)
        except (DenizenError, OSError) as error:
            done.append(Finding.fail(name, f"not mended: {error}", mend="see the checks below"))
        else:
            if what is not None:
                done.append(Finding.fixed(name, what))
    return done


def _make_home(home: Path) -> str | None:
    if home.exists():
        return None
    house.find(home)
    return f"made {home}"


def _hide_secrets(home: Path) -> str | None:
    file = home / "denizen.toml"
    if not file.is_file() or not is_exposed(file):
        return None
    file.chmod(0o600)
    return f"only this user may read {file} now"


def _clear_leftovers(home: Path) -> str | None:
    """Remove what a killed service left, holding the lock so that none starts meanwhile."""
    if service_runs(home) or not any(leftovers(home)):
        return None
    with house.lock(home):
        found = list(leftovers(home))
        for path in found:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    return "removed " + ", ".join(sorted(str(path.relative_to(home)) for path in found))


def _prepare_model(home: Path, progress: Callable[[str], None]) -> str | None:
    """Convert the packaged model where it is the one to be served."""
    patient = admit(home)
    if patient.settings is None or patient.settings.engine.model or patient.model is None:
        return None
    if patient.model.exists() or patient.service_runs:
        return None
    return f"prepared {prepare_packaged_model(home / 'models', progress)}"
