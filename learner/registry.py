"""Adapter versions: their names, their sealed folders, and the rows that say what taught them.

A version's folder is complete or it is not there; its row is written after its folder. It does not
know which version is live.
"""

import asyncio
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from learner import adapter_files
from learner.adapter_format import CONFIG_NAME, WEIGHTS_NAME
from memory.types import AdapterVersion, VersionStatus, utc_now
from memory.version_store import BASE, VersionStore

ORPHAN_PREFIX = ".orphan-"


class Registry:
    """Makes, finds and verifies adapter versions under one folder."""

    def __init__(
        self,
        versions: VersionStore,
        root: Path,
        *,
        base_digest: str,
        base_shapes: Mapping[str, tuple[int, int]],
    ) -> None:
        """Compose, and clear away what a crash has left half done.

        Args:
            versions: the rows.
            root: the folder of all versions.
            base_digest: of the base model's weights.
            base_shapes: of its linear layers, by name; an adapter has to fit them.
        """
        self._versions = versions
        self._root = root
        self._base_digest = base_digest
        self._base_shapes = base_shapes
        root.mkdir(parents=True, exist_ok=True)
        self.swept = [*adapter_files.sweep_staging(root), *self._sweep_orphans()]

    def _sweep_orphans(self) -> list[Path]:
        """Set sealed folders aside that have no row.

        The service died between the two, or the database is another one; so nothing is deleted.
        """
        known = {version.id for version in self._versions.all()}
        sealed = adapter_files.sealed_versions(self._root)
        orphans = [self._root / name for name in sealed if name not in known]
        for path in orphans:
            path.rename(self._root / f"{ORPHAN_PREFIX}{path.name}-{time.time_ns()}")
        return orphans

    def next_name(self) -> str:
        """Return the name of the next version; a name is never used twice."""
        numbers = [int(version.id.removeprefix("denizen-")) for version in self._versions.all()]
        return f"denizen-{max(numbers, default=0) + 1:06d}"

    def seal(
        self,
        source: Path,
        *,
        name: str,
        parent: str,
        cycle_id: str | None,
        episode_ids: Iterable[str],
    ) -> AdapterVersion:
        """Make a version of the adapter in ``source``: copy, hash, rename, then write its row.

        Raises:
            AdapterError: the files are not what an adapter must be, or the name is taken.
        """
        staging = adapter_files.stage(self._root)
        for file in (WEIGHTS_NAME, CONFIG_NAME):
            shutil.copyfile(source / file, staging / file)
        manifest = adapter_files.seal(
            staging,
            self._root,
            name,
            base_digest=self._base_digest,
            parent=parent,
            base_shapes=self._base_shapes,
        )
        version = AdapterVersion(
            id=name,
            parent=parent,
            created_at=utc_now(),
            base_digest=self._base_digest,
            sha256=manifest.sha256,
            rank=manifest.rank,
            alpha=manifest.alpha,
            target_modules=tuple(manifest.target_modules),
            status=VersionStatus.CANDIDATE,
            cycle_id=cycle_id,
            size_bytes=manifest.size_bytes,
        )
        self._versions.add(version, episode_ids)
        return version

    async def path_of(self, name: str) -> Path:
        """Return a version's folder after verifying every byte of it, off the event loop."""
        return await asyncio.to_thread(self.verified_path, name)

    def verified_path(self, name: str) -> Path:
        """Return a version's folder after verifying every byte of it.

        Raises:
            NotFoundError: there is no such version.
            AdapterError: its files are missing, changed, or made for another base model.
        """
        version = self._versions.get(name)
        adapter_files.verify(
            self._root, name, expected_sha256=version.sha256, base_digest=self._base_digest
        )
        return self._root / name

    async def parent_path(self, name: str) -> Path | None:
        """Return the folder that training continues from; None for the base model."""
        return None if name == BASE else await self.path_of(name)
