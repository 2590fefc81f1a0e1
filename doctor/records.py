"""Checks of what is remembered: the database, and the adapter versions that it promises."""

from pathlib import Path

from agent.base_model import base_digest
from doctor.finding import Finding
from doctor.patient import Patient
from learner import adapter_files
from memory import checkup
from memory.checkup import RecordCheckup, SealedVersion
from memory.embed import MiniLmEmbedder
from memory.errors import AdapterError, StoreError
from memory.types import VersionStatus

RESTORE = "restore it from a backup, or move it away to start empty"
NEVER_LOADED = {VersionStatus.REJECTED, VersionStatus.ROLLED_BACK, VersionStatus.TAINTED}


def check_database(patient: Patient) -> Finding:
    """Does the database open, do pages and indexes hang together, and is its schema known?"""
    file = _database(patient)
    if not file.exists():
        return Finding.warn("database", f"{file} is not there yet", mend="denizen serve creates it")
    try:
        found = checkup.look_at(file)
    except StoreError as error:
        newer = "newer Denizen" in error.message
        mend = "install the newest Denizen" if newer else RESTORE
        return Finding.fail("database", error.message, mend=mend)
    pending = f", {found.num_pending} migrations to apply at the start" if found.num_pending else ""
    return Finding.ok("database", f"{file}, {file.stat().st_size / 1e6:.1f} MB{pending}")


def check_record(patient: Patient) -> Finding:
    """Can every call be read, and every episode that has a vector be found by it?"""
    file = _database(patient)
    if not file.exists():
        return Finding.ok("record", "nothing was recorded yet")
    try:
        found = checkup.look_into(
            file, embedder_id=MiniLmEmbedder.id, dimension=MiniLmEmbedder.dimension
        )
    except StoreError:
        return Finding.ok("record", "not looked at without a sound database")
    if found is None:
        return Finding.ok("record", "looked at once the migrations are applied")
    damage = [f"call {id} cannot be read" for id in found.unreadable]
    damage += [f"{n} rows of {table} hang on nothing" for table, n in found.orphans.items()]
    if damage:
        return Finding.fail("record", "; ".join(damage), mend=RESTORE)
    if found.cache_problem is not None:
        detail = f"vectors.faiss is not used: {found.cache_problem}"
        return Finding.warn("record", detail, mend="none needed: denizen serve makes it again")
    return Finding.ok("record", _record_in_words(found))


def _record_in_words(found: RecordCheckup) -> str:
    reasons = ", ".join(
        f"{n} {reason} ({', '.join(ids)}{', …' if n > len(ids) else ''})"
        for reason, n in sorted(found.without_vector.items())
        if (ids := found.some_without[reason])
    )
    without = f"; not to be found by likeness: {reasons}" if reasons else ""
    return f"{found.num_calls} calls can be read, {found.num_vectors} vectors{without}"


def check_adapters(patient: Patient) -> Finding:
    """Is every sealed version what the database says, and can the engine take it?"""
    try:
        versions = checkup.versions_in(_database(patient))
    except StoreError:
        return Finding.ok("adapters", "not looked at without a database")
    digest = _base_digest(patient)
    problems = {v: text for v in versions if (text := _problem(patient, v, digest)) is not None}
    if not problems:
        strays = _strays(patient.home / "adapters", versions)
        if strays:
            detail = f"{', '.join(strays)}: not in the database, never used"
            return Finding.warn("adapters", detail, mend="move it away")
        return Finding.ok("adapters", f"{len(versions)} versions, every byte as it was sealed")
    detail = "; ".join(problems.values())
    if all(version.status in NEVER_LOADED for version in problems):
        return Finding.warn("adapters", detail, mend="none needed: nothing goes back to it")
    mend = "restore the folder from a backup, or roll back to another version"
    return Finding.fail("adapters", detail, mend=mend)


def _problem(patient: Patient, version: SealedVersion, digest: str | None) -> str | None:
    """Say what is wrong with a version's files, or why the engine would refuse it."""
    try:
        adapter_files.verify(
            patient.home / "adapters",
            version.id,
            expected_sha256=version.sha256,
            base_digest=digest,
        )
    except AdapterError as error:
        return f"{error.message} ({version.status})"
    if patient.settings is None or version.rank <= patient.settings.engine.max_lora_rank:
        return None
    return (
        f"{version.id} ({version.status}) has rank {version.rank}, above engine.max_lora_rank "
        f"{patient.settings.engine.max_lora_rank}: raise engine.max_lora_rank"
    )


def _base_digest(patient: Patient) -> str | None:
    """Return what the versions have to be made for, where the base model is at hand."""
    model = patient.model
    return base_digest(model) if model is not None and any(model.glob("*.safetensors")) else None


def _strays(root: Path, versions: list[SealedVersion]) -> list[str]:
    """Return the names of sealed folders that the database does not know."""
    if not root.is_dir():
        return []
    known = {version.id for version in versions}
    return [name for name in adapter_files.sealed_versions(root) if name not in known]


def _database(patient: Patient) -> Path:
    return patient.home / "denizen.db"
