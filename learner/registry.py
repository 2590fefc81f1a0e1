"""Adapter versions: their names, their sealed folders, and the rows that say where they are from.

A version's folder is complete or it is not there; its row is written after its folder. It does not
know which version is live.
"""

import asyncio
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from learner import adapter_files
from learner.adapter_format import CONFIG_NAME, AdapterFacts, inspect
from learner.adapter_weights import WEIGHTS_NAME
from learner.fit import Fit
from learner.foreign import inspect_foreign
from memory.errors import AdapterError, ConflictError, DenizenError
from memory.types import AdapterVersion, VersionStatus, utc_now
from memory.version_store import BASE, VersionStore

ORPHAN_PREFIX = ".orphan-"


class Registry:
    """Makes, finds and verifies adapter versions under one folder."""

    def __init__(self, versions: VersionStore, root: Path, fit: Fit) -> None:
        """Compose, and clear away what a crash has left half done.

        Args:
            versions: the rows.
            root: the folder of all versions.
            fit: what an adapter has to fit.
        """
        self._versions = versions
        self._root = root
        self._fit = fit
        self._adding = threading.Lock()  # from the choice of a name to its row
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
        """Return the name that the next version will have; a name is never given twice."""
        numbers = [int(version.id.removeprefix("denizen-")) for version in self._versions.all()]
        return f"denizen-{max(numbers, default=0) + 1:06d}"

    def seal(
        self, source: Path, *, parent: str, cycle_id: str | None, episode_ids: Iterable[str]
    ) -> AdapterVersion:
        """Make the next version of what was trained: copy, check, rename, then write its row.

        Raises:
            AdapterError: the files are not what an adapter must be.
            UnavailableError: the disk is full.
        """
        staging = self.stage()
        with adapter_files.removed_on_failure(staging):
            for file in (WEIGHTS_NAME, CONFIG_NAME):
                shutil.copyfile(source / file, staging / file)
            facts = inspect(staging, base_shapes=self._fit.base_shapes)
            self._fit.check_rank(facts.rank)
            with self._adding:
                return self._add(staging, facts, episode_ids, parent=parent, cycle_id=cycle_id)

    def stage(self) -> Path:
        """Make a folder to write an adapter into, for ``adopt``."""
        return adapter_files.stage(self._root)

    def adopt(self, staging: Path, *, reason: str | None = None) -> AdapterVersion:
        """Make the next version of an adapter from outside.

        Args:
            staging: from ``stage``, holding its files; gone afterwards, whatever comes of it.
            reason: why it was brought in, shown to people.

        Raises:
            AdapterError: the files are not what an adapter must be, or contradict their manifest.
            ConflictError: a version has these weights already.
            UnavailableError: the disk is full.
        """
        with adapter_files.removed_on_failure(staging):
            facts = inspect_foreign(staging, self._fit)
            with self._adding:
                self._check_new(facts)
                return self._add(staging, facts, (), parent=BASE, origin="import", reason=reason)

    def _check_new(self, facts: AdapterFacts) -> None:
        """The same weights twice would be two versions that always answer the same."""
        for version in self._versions.all():
            if (version.sha256, version.alpha) == (facts.sha256, facts.alpha):
                raise ConflictError(
                    f"{version.id} has these weights already (sha256 {facts.sha256}); "
                    f"it is {version.status}"
                )

    def _add(
        self,
        staging: Path,
        facts: AdapterFacts,
        episode_ids: Iterable[str],
        *,
        parent: str,
        origin: str = "cycle",
        cycle_id: str | None = None,
        reason: str | None = None,
    ) -> AdapterVersion:
        """Name, seal and record; the caller holds ``_adding``."""
        version = AdapterVersion(
            id=self.next_name(),
            parent=parent,
            created_at=utc_now(),
            base_digest=self._fit.base_digest,
            sha256=facts.sha256,
            rank=facts.rank,
            alpha=facts.alpha,
            target_modules=facts.target_modules,
            status=VersionStatus.CANDIDATE,
            origin=origin,
            cycle_id=cycle_id,
            size_bytes=facts.size_bytes,
            reason=reason,
        )
        adapter_files.seal(
            staging,
            self._root,
            version.id,
            facts,
            base_digest=version.base_digest,
            parent=parent,
        )
        try:
            self._versions.add(version, episode_ids)
        except DenizenError:  # without a row it is no version, and its name is still free
            shutil.rmtree(self._root / version.id, ignore_errors=True)
            raise
        return version

    async def path_of(self, name: str) -> Path:
        """Return a version's folder after verifying every byte of it, off the event loop."""
        return await asyncio.to_thread(self.verified_path, name)

    def verified_path(self, name: str) -> Path:
        """Return a version's folder after verifying every byte of it.

        Raises:
            NotFoundError: there is no such version.
            AdapterError: its files are missing, changed, made for another base model, or of a rank
                above the engine's.
        """
        version = self._versions.get(name)
        adapter_files.verify(
            self._root, name, expected_sha256=version.sha256, base_digest=self._fit.base_digest
        )
        self._fit.check_rank(version.rank, name)
        return self._root / name

    def problems(self) -> list[str]:
        """Verify every version, and say what else lies in the folder; empty when all is well."""
        with self._adding:
            names = sorted(version.id for version in self._versions.all())
            there = sorted(path.name for path in self._root.iterdir())
        found = []
        for name in names:
            try:
                self.verified_path(name)
            except AdapterError as error:
                found.append(error.message)
        strays = set(there) - set(names)
        return found + [
            f"{name!r} is in no database and is never used: a crash left it, or another database "
            "knows it; move it away"
            for name in sorted(strays)
            if not name.startswith(adapter_files.STAGING_PREFIX)
        ]

    async def parent_path(self, name: str) -> Path | None:
        """Return the folder that training continues from; None for the base model."""
        return None if name == BASE else await self.path_of(name)
