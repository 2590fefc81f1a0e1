"""Checks of the home folder: settings, secrets, permissions, room, and what a crash left behind."""

import os
import shutil
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.base_model import FOLDER
from doctor.finding import Finding
from doctor.patient import Patient
from learner.adapter_files import STAGING_PREFIX

MIN_FREE_BYTES = 2_000_000_000
"""The prepared model (0.3 GB), tens of adapter versions (20 MB each), and a growing record."""

FIX = "denizen doctor --fix"
_SECRET_WORDS = ("key", "token", "secret", "password")


def check_home(patient: Patient) -> Finding:
    """Is the home a folder that we can write and others cannot read?"""
    home = patient.home
    if not home.exists():
        return Finding.warn("home", f"{home} is not there yet", mend=f"denizen serve, or {FIX}")
    if not home.is_dir():
        mend = "move it away, or set DENIZEN_HOME to a folder"
        return Finding.fail("home", f"{home} is no folder", mend=mend)
    if not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        mend = f"chown it to this user, or chmod u+rwx {home}"
        return Finding.fail("home", f"{home} cannot be written", mend=mend)
    if (mode := _mode(home)) & 0o077:
        detail = f"{home} holds conversations, and others may enter it (mode {mode:04o})"
        return Finding.warn("home", detail, mend=f"chmod 700 {home}")
    return Finding.ok("home", str(home))


def check_settings(patient: Patient) -> Finding:
    """Can the settings be read, and do they agree with each other?"""
    if patient.settings_problem is not None:
        mend = "change that setting in denizen.toml or in the environment"
        return Finding.fail("settings", patient.settings_problem, mend=mend)
    file = patient.settings_file
    return Finding.ok("settings", str(file) if file.exists() else f"no {file}: the defaults hold")


def check_secrets(patient: Patient) -> Finding:
    """Can others read the keys in the settings file?"""
    file = patient.settings_file
    if not file.is_file():
        return Finding.ok("secrets", "no settings file")
    if not is_exposed(file):
        return Finding.ok("secrets", f"{file} has mode {_mode(file):04o}")
    detail = f"{file} holds keys, and others may read it (mode {_mode(file):04o})"
    return Finding.warn("secrets", detail, mend=f"chmod 600 {file}, or {FIX}")


def check_disk(patient: Patient) -> Finding:
    """Is there room where the home is, or will be?"""
    home = patient.home
    place = next(folder for folder in (home, *home.absolute().parents) if folder.exists())
    free_bytes = shutil.disk_usage(place).free
    detail = f"{free_bytes / 1e9:.1f} GB free at {place}"
    if free_bytes >= MIN_FREE_BYTES:
        return Finding.ok("disk", detail)
    mend = f"free {MIN_FREE_BYTES / 1e9:.0f} GB, or set DENIZEN_HOME to a larger disk"
    return Finding.fail("disk", detail, mend=mend)


def check_leftovers(patient: Patient) -> Finding:
    """Has a service that was killed left something unfinished?"""
    if patient.service_runs:
        return Finding.ok("leftovers", "not looked for while a service runs")
    found = sorted(str(path.relative_to(patient.home)) for path in leftovers(patient.home))
    if not found:
        return Finding.ok("leftovers", "none")
    detail = f"left by a service that was killed: {', '.join(found)}"
    return Finding.warn("leftovers", detail, mend=f"denizen serve clears them away, or {FIX}")


def leftovers(home: Path) -> Iterator[Path]:
    """Yield what nothing needs when no service runs: half-written files, and its address."""
    yield from home.glob(f"adapters/{STAGING_PREFIX}*")
    yield from home.glob(f"models/.{FOLDER}-*")
    yield from (home / name for name in ("work", "service.json") if (home / name).exists())


def is_exposed(file: Path) -> bool:
    """Say whether a settings file holds secrets and others may read it.

    One that cannot be parsed may hold anything.
    """
    if not _mode(file) & 0o077:
        return False
    try:
        return _holds_secret(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValueError:
        return True


def _holds_secret(settings: Mapping[str, Any]) -> bool:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            if _holds_secret(value):
                return True
        elif value and any(word in name.lower() for word in _SECRET_WORDS):
            return True
    return False


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
