"""An adapter version, and the pointer to the live one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class VersionStatus(StrEnum):
    """Where an adapter version is in its life; see ``VERSION_TRANSITIONS``."""

    CANDIDATE = "candidate"
    LIVE = "live"
    RETIRED = "retired"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    TAINTED = "tainted"


VERSION_TRANSITIONS: Mapping[VersionStatus, frozenset[VersionStatus]] = {
    VersionStatus.CANDIDATE: frozenset(
        {VersionStatus.LIVE, VersionStatus.REJECTED, VersionStatus.TAINTED}
    ),
    VersionStatus.LIVE: frozenset(
        {VersionStatus.RETIRED, VersionStatus.ROLLED_BACK, VersionStatus.TAINTED}
    ),
    VersionStatus.RETIRED: frozenset({VersionStatus.LIVE, VersionStatus.TAINTED}),
    VersionStatus.REJECTED: frozenset({VersionStatus.LIVE, VersionStatus.TAINTED}),
    VersionStatus.ROLLED_BACK: frozenset({VersionStatus.LIVE, VersionStatus.TAINTED}),
    VersionStatus.TAINTED: frozenset(),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterVersion:
    """One immutable set of LoRA weights.

    Example:
        ``AdapterVersion(id="denizen-000007", parent="denizen-000006", base_digest="9f…",
        sha256="41…", rank=16, alpha=32, target_modules=("q_proj", …), status=VersionStatus.LIVE,
        cycle_id="cycle_0193-11", …)``
    """

    id: str
    parent: str  # "base", or a version id
    created_at: datetime
    base_digest: str  # sha256 of the base model's weights
    sha256: str  # of adapter_model.safetensors
    rank: int
    alpha: int
    target_modules: Sequence[str]
    status: VersionStatus
    origin: str = "cycle"  # "cycle" | "import"
    cycle_id: str | None = None
    size_bytes: int = 0
    reason: str | None = None  # why it was imported


@dataclass(frozen=True, kw_only=True, slots=True)
class PointerMove:
    """One change of what is live; append-only."""

    id: int
    created_at: datetime
    from_version: str
    to_version: str
    kind: str  # "promote" | "rollback"
    reason: str
    actor: str
    forced: bool = False
