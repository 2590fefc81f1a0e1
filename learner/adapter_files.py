"""Adapter versions as folders: written aside, made durable, and named only when complete.

A version's folder never changes after ``seal``. Knows nothing of the database, of which version is
live, or of the engine; names are checked here, and no path ever comes from outside.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learner.adapter_format import (
    CONFIG_NAME,
    MANIFEST_NAME,
    WEIGHTS_NAME,
    inspect,
)
from memory.errors import AdapterError
from memory.version_store import VERSION_NAME

__all__ = [
    "CONFIG_NAME",
    "MANIFEST_NAME",
    "WEIGHTS_NAME",
    "AdapterManifest",
    "publish",
    "seal",
    "sealed_versions",
    "stage",
    "sweep_staging",
    "verify",
]

_STAGING_PREFIX = ".staging-"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterManifest:
    """``manifest.json``: what a sealed version is, and the hashes that prove it."""

    version: str
    parent: str  # "base", or a version
    base_digest: str  # sha256 of the base model's weights
    sha256: str  # of adapter_model.safetensors
    config_sha256: str  # of adapter_config.json
    size_bytes: int
    rank: int
    alpha: int
    target_modules: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as plain JSON."""
        return asdict(self)


def stage(root: Path) -> Path:
    """Make a new folder beside the versions, on the same file system, to write an adapter into."""
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=root))


def publish(staging: Path, final: Path) -> None:
    """Give a finished folder its name, after every byte of it is on disk.

    Renaming is the last step: a kill before it leaves nothing under the final name, a kill after it
    leaves everything.

    Raises:
        AdapterError: the name is taken.
    """
    if final.is_symlink() or final.exists():
        raise AdapterError(f"{final.name} exists already and is never overwritten")
    staging.chmod(0o755)  # mkdtemp makes it 0700
    for path in sorted(staging.iterdir()):
        _sync(path)
    _sync(staging)
    os.replace(staging, final)
    _sync(final.parent)


def seal(
    staging: Path,
    root: Path,
    version: str,
    *,
    base_digest: str,
    parent: str,
    base_shapes: Mapping[str, tuple[int, int]] | None = None,
) -> AdapterManifest:
    """Check the staged adapter, write its manifest, and make it version ``version`` for ever.

    Args:
        staging: a folder made by ``stage(root)``, holding the weights and the configuration.
        root: the folder of all versions.
        version: ``denizen-000007``.
        base_digest: of the base model the adapter was trained on.
        parent: the version it continues from, or ``base``.
        base_shapes: see ``adapter_format.inspect``.

    Raises:
        AdapterError: the files are not what an adapter must be, or the version exists.
    """
    final = _path_of(root, version)
    facts = inspect(staging, base_shapes=base_shapes)
    manifest = AdapterManifest(
        version=version, parent=parent, base_digest=base_digest, **asdict(facts)
    )
    text = json.dumps(manifest.to_json(), indent=2) + "\n"
    (staging / MANIFEST_NAME).write_text(text, encoding="utf-8")
    publish(staging, final)
    return manifest


def verify(
    root: Path,
    version: str,
    *,
    expected_sha256: str | None = None,
    base_digest: str | None = None,
) -> AdapterManifest:
    """Read a sealed version back and check every byte of it.

    Args:
        root: the folder of all versions.
        version: ``denizen-000007``.
        expected_sha256: of the weights, as recorded elsewhere; None when nothing else knows it.
        base_digest: of the base model that is to run it; None when it is not known.

    Raises:
        AdapterError: files are missing, changed, foreign, or made for another base model.
    """
    folder = _path_of(root, version)
    facts = inspect(folder)
    manifest = _read_manifest(folder / MANIFEST_NAME)
    recorded = asdict(manifest)
    found = asdict(facts) | {"version": version}
    if expected_sha256 is not None:
        recorded["sha256"] = expected_sha256
    if base_digest is not None:
        found["base_digest"] = base_digest
    for name, value in found.items():
        if recorded[name] != value:
            raise AdapterError(
                f"{version} is not what was sealed: {name} is expected as {recorded[name]}, "
                f"found {value}"
            )
    return manifest


def sealed_versions(root: Path) -> list[str]:
    """Return the names of the sealed versions, oldest first."""
    return sorted(p.name for p in root.iterdir() if VERSION_NAME.fullmatch(p.name))


def sweep_staging(root: Path) -> list[Path]:
    """Remove what a killed process left half written; return what was removed.

    Call it before anything stages into ``root``: a folder being written looks the same.
    """
    leftovers = sorted(root.glob(f"{_STAGING_PREFIX}*"))
    for path in leftovers:
        shutil.rmtree(path)
    return leftovers


def _path_of(root: Path, version: str) -> Path:
    if VERSION_NAME.fullmatch(version) is None:
        raise AdapterError(f"expected a version name like denizen-000007, got {version[:64]!r}")
    return root / version


def _read_manifest(path: Path) -> AdapterManifest:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["target_modules"] = tuple(fields["target_modules"])
        return AdapterManifest(**fields)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise AdapterError(f"{path.parent.name}: its manifest cannot be read: {error}") from error


def _sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
