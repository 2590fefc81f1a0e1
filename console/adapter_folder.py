"""An adapter folder on its way to the service: opened here, judged there.

Follows no symbolic link, opens nothing but the known files, and refuses a folder that holds
anything else. What the files must hold is the service's to say.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

REQUIRED = ("adapter_model.safetensors", "adapter_config.json")
OPTIONAL = ("manifest.json",)
IGNORED = {"README.md"}
"""peft always writes it; it stays here."""


class AdapterFolderError(ValueError):
    """A folder is no adapter; the message says why."""


@contextmanager
def open_adapter(folder: Path) -> Iterator[dict[str, BinaryIO]]:
    """Open an adapter's files for reading, by name.

    Raises:
        AdapterFolderError: the folder or a file is missing or a symbolic link, or there are others.
    """
    with ExitStack() as stack:
        descriptor = _open_folder(folder)
        stack.callback(os.close, descriptor)
        found = set(os.listdir(descriptor)) - IGNORED
        if not found:
            raise AdapterFolderError(f"{folder} is empty: expected {' and '.join(REQUIRED)}")
        if strays := sorted(found.difference(REQUIRED, OPTIONAL)):
            raise AdapterFolderError(
                f"{folder} also holds {', '.join(map(repr, strays))}: put {' and '.join(REQUIRED)} "
                "into a folder of their own"
            )
        if missing := [name for name in REQUIRED if name not in found]:
            raise AdapterFolderError(f"{folder} lacks {' and '.join(missing)}")
        names = [name for name in (*REQUIRED, *OPTIONAL) if name in found]
        yield {name: stack.enter_context(_open_file(name, descriptor)) for name in names}


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (OSError, ValueError) as error:
        if folder.is_symlink():
            raise AdapterFolderError(
                f"{folder} is a symbolic link: name the folder itself"
            ) from error
        reason = error.strerror if isinstance(error, OSError) else error
        raise AdapterFolderError(f"{folder} cannot be read as a folder: {reason}") from error


def _open_file(name: str, folder: int) -> BinaryIO:
    try:  # without O_NONBLOCK a pipe would be waited for
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        file = os.fdopen(os.open(name, flags, dir_fd=folder), "rb")
    except OSError as error:
        raise AdapterFolderError(
            f"{name} cannot be read as a plain file: {error.strerror}"
        ) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise AdapterFolderError(f"{name} is no plain file")
    return file
