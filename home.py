"""The home folder: its lock, its log, and the note that says where the service listens."""

import fcntl
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from memory.errors import ConfigError
from memory.log_filter import RedactingFormatter
from memory.redaction import PatternRedactor

QUIET_LIBRARIES = ("apscheduler", "httpx", "httpx2", "sentence_transformers")


def find(home: Path | None) -> Path:
    """Return the home folder, made if missing: given, ``$DENIZEN_HOME``, or ``~/.denizen``."""
    given = home or Path(os.environ.get("DENIZEN_HOME") or "~/.denizen")
    found = given.expanduser().resolve()
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds conversations and keys
    except OSError as error:
        raise ConfigError(f"cannot make the home folder {found}: {error.strerror}") from error
    return found


@contextmanager
def lock(home: Path) -> Iterator[None]:
    """Hold the home's lock: one service a home. The kernel frees it however the process ends.

    Raises:
        ConfigError: another service holds it.
    """
    with (home / "denizen.lock").open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another Denizen runs on {home}; stop it, or choose another --home"
            ) from None
        yield


@contextmanager
def note(home: Path, url: str) -> Iterator[None]:
    """Leave the service's address for the command line while it runs."""
    path = home / "service.json"
    staged = path.with_suffix(".tmp")  # so that nobody reads half of it
    staged.write_bytes(orjson.dumps({"url": url, "pid": os.getpid()}))
    staged.replace(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def log_to(home: Path, level: str, keys: Iterable[str] = ()) -> None:
    """Write the service's log to ``logs/service.log``, without secrets; ``keys`` are its own."""
    folder = home / "logs"
    folder.mkdir(exist_ok=True)
    handler = logging.FileHandler(folder / "service.log", encoding="utf-8")
    line = "%(asctime)s %(levelname)s %(name)s %(message)s"
    handler.setFormatter(RedactingFormatter(line, PatternRedactor(known=keys)))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for library in QUIET_LIBRARIES:
        logging.getLogger(library).setLevel("WARNING")
