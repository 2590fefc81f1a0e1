"""Adapter versions as folders: written aside, made durable, and named only when complete.

A version's folder never changes after ``seal``. Knows nothing of the database, of which version is
live, or of the engine; names are checked here, and no path ever comes from outside.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learner.adapter_format import MANIFEST_NAME, AdapterFacts, inspect, read_json
from memory.errors import AdapterError, UnavailableError
from memory.version_store import VERSION_NAME

STAGING_PREFIX = ".staging-"


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
    """Make a new folder beside the versions, on the same file system, to write an adapter into.

    Raises:
        UnavailableError: the disk refused, as when it is full.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=root))
    except OSError as error:
        raise _refused_by_disk(error) from error


@contextmanager
def removed_on_failure(staging: Path) -> Iterator[None]:
    """Take a staged folder away when the work in it fails.

    Raises:
        UnavailableError: the disk refused, as when it is full.
    """
    try:
        yield
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if isinstance(error, OSError):
            raise _refused_by_disk(error) from error
        raise


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
    try:
        _sync(final.parent)
    except OSError:
        os.replace(final, staging)  # the name might not outlast a power cut
        raise


def seal(
    staging: Path, root: Path, version: str, facts: AdapterFacts, *, base_digest: str, parent: str
) -> AdapterManifest:
    """Write the manifest of a staged adapter, and make it version ``version`` for ever.

    Args:
        staging: a folder made by ``stage(root)``.
        root: the folder of all versions.
        version: ``denizen-000007``.
        facts: what ``inspect`` found in the folder.
        base_digest: of the base model the adapter fits.
        parent: the version it continues from, or ``base``.

    Raises:
        AdapterError: the version exists, or its name is none.
    """
    final = _path_of(root, version)
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
    try:
        facts = inspect(folder)
        manifest = read_manifest(folder)
        expected = asdict(manifest)
        if expected_sha256 is not None:
            expected["sha256"] = expected_sha256
        found = asdict(facts) | {"version": version}
        if base_digest is not None:
            found["base_digest"] = base_digest
        check_same(expected, found)
    except AdapterError as error:
        raise AdapterError(f"{version} is not what was sealed: {error.message}") from error
    return manifest


def read_manifest(folder: Path) -> AdapterManifest:
    """Read the manifest of an adapter folder.

    Raises:
        AdapterError: there is none, or it is none.
    """
    fields = read_json(folder / MANIFEST_NAME)
    try:
        fields["target_modules"] = tuple(fields["target_modules"])
        return AdapterManifest(**fields)
    except (TypeError, KeyError) as error:
        raise AdapterError(f"{MANIFEST_NAME} is no adapter's manifest: {error}") from error


def check_same(expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Compare what was found with what a manifest says.

    Raises:
        AdapterError: names the first difference, and both sides of it.
    """
    for name, value in found.items():
        if expected[name] != value:
            raise AdapterError(f"{name} is expected as {expected[name]!s:.200}, found {value}")


def sealed_versions(root: Path) -> list[str]:
    """Return the names of the sealed versions, oldest first."""
    return sorted(p.name for p in root.iterdir() if VERSION_NAME.fullmatch(p.name))


def moments_path(adapter: Path) -> Path:
    """Return where the optimizer's moments of the step that wrote an adapter folder are kept."""
    return adapter.with_name(f"{adapter.name}.moments.safetensors")


def sweep_staging(root: Path) -> list[Path]:
    """Remove what a killed process left half written; return what was removed.

    Call it before anything stages into ``root``: a folder being written looks the same.
    """
    leftovers = sorted(root.glob(f"{STAGING_PREFIX}*"))
    for path in leftovers:
        shutil.rmtree(path)
    return leftovers


def _path_of(root: Path, version: str) -> Path:
    if VERSION_NAME.fullmatch(version) is None:
        raise AdapterError(f"expected a version name like denizen-000007, got {version[:64]!r}")
    return root / version


def _refused_by_disk(error: OSError) -> UnavailableError:
    reason = f"the adapter cannot be written: {error.strerror or error}"
    return UnavailableError(reason, retry_after_s=60)


def _sync(path: Path) -> None:
    """Bring a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
