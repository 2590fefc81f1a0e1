"""All checks, one after the other; one that breaks is a finding like the others."""

from collections.abc import Callable
from pathlib import Path

from doctor import engine, home_folder, installation, records, service
from doctor.finding import Finding
from doctor.patient import Patient, admit
from memory.errors import DenizenError

CHECKS: dict[str, Callable[[Patient], Finding]] = {
    "python": installation.check_python,
    "packages": installation.check_packages,
    "plugin": installation.check_plugin,
    "home": home_folder.check_home,
    "settings": home_folder.check_settings,
    "secrets": home_folder.check_secrets,
    "disk": home_folder.check_disk,
    "leftovers": home_folder.check_leftovers,
    "model": engine.check_model,
    "memory": engine.check_memory,
    "engine": engine.check_engine,
    "database": records.check_database,
    "record": records.check_record,
    "adapters": records.check_adapters,
    "port": service.check_port,
    "service": service.check_service,
}


def examine(home: Path) -> list[Finding]:
    """Run every check on this installation and on ``home``; changes nothing."""
    patient = admit(home)
    return [_guarded(name, check, patient) for name, check in CHECKS.items()]


def _guarded(name: str, check: Callable[[Patient], Finding], patient: Patient) -> Finding:
    try:
        return check(patient)
    except (DenizenError, OSError) as error:
        return Finding.fail(name, f"cannot be looked at: {error}", mend="mend what it names")
    except Exception as error:  # the other checks must run; its text may hold anything, so no text
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place else "nowhere"
        detail = f"the check itself failed: {type(error).__name__} at {where}"
        return Finding.fail(name, detail, mend="report it")
