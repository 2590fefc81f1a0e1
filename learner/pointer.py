"""Which version is live, who may change that, and the way back.

A move is: the engine has the version ready, the move is written down, the pointer moves in memory.
Only the written log counts after a restart. It does not know how versions come to be, nor how the
engine loads them.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from memory.cycle_store import CycleStore
from memory.errors import ConflictError, InvalidRequestError, UnavailableError
from memory.types import CycleState, VersionStatus
from memory.version_store import BASE, VersionStore

OPEN_STATES = {CycleState.PROPOSED, CycleState.INCONCLUSIVE}  # a person may still decide


class Publisher(Protocol):
    """What makes a version ready to answer, and lets it answer."""

    async def publish(self, version: str) -> None:
        """Verify, load and probe a version; raises, and changes nothing, when it cannot answer."""

    def is_published(self, version: str) -> bool:
        """Say whether the version can answer just now."""

    def move(self, version: str, *, previous: str) -> None:
        """Let a published version answer from the next request on; keep ``previous`` ready."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """What came of asking for a move."""

    moved: bool
    from_version: str
    to_version: str


class Pointer:
    """The only mover of what is live; one decision at a time."""

    def __init__(self, versions: VersionStore, cycles: CycleStore, publisher: Publisher) -> None:
        self._versions = versions
        self._cycles = cycles
        self._publisher = publisher
        self._lock = asyncio.Lock()

    @property
    def live(self) -> str:
        """What the log says is live."""
        return self._versions.live()

    async def promote(
        self, version: str, *, actor: str, reason: str | None = None, force: bool = False
    ) -> Move:
        """Make a version live.

        Raises:
            NotFoundError: there is no such version.
            InvalidRequestError: no gate has passed it, or it was rejected, and ``force`` with a
                reason was not given.
            AdapterError, EngineError: it cannot answer; what was live stays live.
        """
        reason = (reason or "").strip()
        async with self._lock:
            passed = self._may_be_promoted(version)
            if not passed and not (force and reason) and version != self.live:
                raise InvalidRequestError(
                    f"no gate has passed {version}, or it was rejected: promoting it needs force "
                    "and a reason",
                    param="force",
                )
            reason = reason or "passed its gate"
            move = await self._move(version, "promote", reason, actor, forced=not passed)
            self._close_cycle(version, CycleState.PROMOTED, reason)
        return move

    async def rollback(self, *, actor: str, reason: str, to: str | None = None) -> Move:
        """Go back to a version, by default to the one that was live before the present one.

        Raises:
            ConflictError: there is nothing to go back to, or ``to`` was never live.
        """
        async with self._lock:
            to = to or self._versions.previous()
            if to is None:
                raise ConflictError("the base model is live; there is nothing to roll back to")
            if to != BASE and not any(m.to_version == to for m in self._versions.moves()):
                self._versions.get(to)
                raise ConflictError(f"{to} was never live; promote it instead")
            return await self._move(to, "rollback", reason, actor, forced=False)

    async def approve(
        self, version: str, *, actor: str, reason: str, sha256: str | None = None
    ) -> Move:
        """Let a candidate go live that was proven against what is live.

        Raises:
            ConflictError: it is no candidate any more, not the one that was looked at, without a
                passing gate, or proven against something that is not live any more.
        """

        def check() -> None:
            self._check_candidate(version, sha256)
            cycle_id = self._versions.get(version).cycle_id
            cycle = self._cycles.get(cycle_id) if cycle_id else None
            if cycle is None or not _passed(cycle.gate):
                raise ConflictError(f"no gate has passed {version}; promoting it needs force")
            if cycle.start_version != self.live:
                raise ConflictError(
                    f"{version} was proven against {cycle.start_version}, but {self.live} is live"
                )

        async with self._lock:
            move = await self._move(version, "promote", reason, actor, forced=False, check=check)
            self._close_cycle(version, CycleState.PROMOTED, reason)
        return move

    async def reject(self, version: str, *, reason: str, sha256: str | None = None) -> None:
        """Turn a candidate down for good.

        Raises:
            ConflictError: it is no candidate any more, or not the one that was looked at.
        """
        async with self._lock:
            self._check_candidate(version, sha256)
            self._versions.set_status(version, VersionStatus.REJECTED)
            self._close_cycle(version, CycleState.REJECTED, reason)

    def _may_be_promoted(self, version: str) -> bool:
        """Say whether the version's own gate passed it and nobody has rejected it."""
        found = self._versions.get(version)
        gate = self._cycles.get(found.cycle_id).gate if found.cycle_id else None
        return _passed(gate) and found.status is not VersionStatus.REJECTED

    def _check_candidate(self, version: str, sha256: str | None) -> None:
        found = self._versions.get(version)
        if found.status is not VersionStatus.CANDIDATE:
            raise ConflictError(f"{version} is {found.status}, no candidate")
        if sha256 is not None and sha256 != found.sha256:
            raise ConflictError(f"{version} has sha256 {found.sha256}, not {sha256}")

    def _close_cycle(self, version: str, state: CycleState, reason: str) -> None:
        cycle_id = self._versions.get(version).cycle_id
        if cycle_id and self._cycles.get(cycle_id).state in OPEN_STATES:
            self._cycles.set_state(cycle_id, state, reason)

    async def _move(
        self,
        to: str,
        kind: str,
        reason: str,
        actor: str,
        *,
        forced: bool,
        check: Callable[[], None] = lambda: None,
    ) -> Move:
        """Publish, write down, move; the caller holds the lock."""
        check()
        live = self.live
        if to == live:
            return Move(moved=False, from_version=live, to_version=to)
        if to != BASE and self._versions.get(to).status is VersionStatus.TAINTED:
            raise ConflictError(f"{to} is tainted: what taught it was erased")
        if to != BASE:
            await self._publisher.publish(to)
        # Nothing is awaited from here on: what is published now is so when the move is recorded.
        if not self._publisher.is_published(to):
            raise UnavailableError(f"the engine went down while {to} was published; try again")
        self._versions.move_pointer(
            expected=live, to=to, kind=kind, reason=reason, actor=actor, forced=forced
        )
        self._publisher.move(to, previous=self._versions.previous() or BASE)
        return Move(moved=True, from_version=live, to_version=to)


def _passed(gate: object) -> bool:
    return isinstance(gate, dict) and gate.get("verdict") == "promote"
