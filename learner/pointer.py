"""Which version is live, who may change that, and the way back.

A move is: the engine has the version ready, the move is written down, the pointer moves in memory.
Only the written log counts after a restart. It does not know how versions come to be, nor how the
engine loads them.
"""

import asyncio
from dataclasses import dataclass
from typing import Protocol

from memory.cycle_store import CycleStore
from memory.errors import ConflictError, InvalidRequestError
from memory.types import CycleState, VersionStatus
from memory.version_store import BASE, VersionStore


class Publisher(Protocol):
    """What makes a version ready to answer, and lets it answer."""

    async def publish(self, version: str) -> None:
        """Verify, load and probe a version; raises, and changes nothing, when it cannot answer."""

    def move(self, version: str) -> None:
        """Let a published version answer from the next request on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """What came of asking for a move."""

    moved: bool
    from_version: str
    to_version: str


class Pointer:
    """The only mover of what is live; one move at a time."""

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
            InvalidRequestError: no gate has passed it, and ``force`` with a reason was not given.
            AdapterError, EngineError: it cannot answer; what was live stays live.
        """
        passed = self.has_passed_gate(version)
        if not passed and not (force and reason):
            raise InvalidRequestError(
                f"no gate has passed {version}: promoting it needs force and a reason",
                param="force",
            )
        return await self._move(
            version,
            kind="promote",
            reason=reason or "passed its gate",
            actor=actor,
            forced=not passed,
        )

    async def rollback(self, *, actor: str, reason: str, to: str | None = None) -> Move:
        """Go back to a version, by default to the one that was live before the present one.

        Raises:
            ConflictError: there is nothing to go back to.
        """
        to = to or self._versions.previous()
        if to is None:
            raise ConflictError("the base model is live; there is nothing to roll back to")
        return await self._move(to, kind="rollback", reason=reason, actor=actor, forced=False)

    def has_passed_gate(self, version: str) -> bool:
        """Say whether the version's own learning cycle ended with a gate that passed it."""
        cycle_id = self._versions.get(version).cycle_id
        gate = self._cycles.get(cycle_id).gate if cycle_id else None
        return gate is not None and gate["verdict"] == "promote"

    async def approve(self, version: str, *, actor: str, reason: str, sha256: str | None) -> Move:
        """Let a proposed candidate go live.

        Raises:
            ConflictError: it is no candidate any more, or not the one that was looked at.
        """
        self._check_candidate(version, sha256)
        move = await self.promote(version, actor=actor, reason=reason)
        self._close_cycle(version, CycleState.PROMOTED, reason)
        return move

    def reject(self, version: str, *, reason: str, sha256: str | None) -> None:
        """Turn a candidate down for good.

        Raises:
            ConflictError: it is no candidate any more, or not the one that was looked at.
        """
        self._check_candidate(version, sha256)
        self._versions.set_status(version, VersionStatus.REJECTED)
        self._close_cycle(version, CycleState.REJECTED, reason)

    def _check_candidate(self, version: str, sha256: str | None) -> None:
        found = self._versions.get(version)
        if found.status is not VersionStatus.CANDIDATE:
            raise ConflictError(f"{version} is {found.status}, no candidate")
        if sha256 is not None and sha256 != found.sha256:
            raise ConflictError(f"{version} has sha256 {found.sha256}, not {sha256}")

    def _close_cycle(self, version: str, state: CycleState, reason: str) -> None:
        if cycle_id := self._versions.get(version).cycle_id:
            self._cycles.set_state(cycle_id, state, reason)

    def _status(self, version: str) -> VersionStatus:
        return self._versions.get(version).status

    async def _move(self, to: str, *, kind: str, reason: str, actor: str, forced: bool) -> Move:
        async with self._lock:
            live = self.live
            if to == live:
                return Move(moved=False, from_version=live, to_version=to)
            if to != BASE and self._status(to) is VersionStatus.TAINTED:
                raise ConflictError(f"{to} is tainted: what taught it was erased")
            if to != BASE:
                await self._publisher.publish(to)
            self._versions.move_pointer(
                expected=live, to=to, kind=kind, reason=reason, actor=actor, forced=forced
            )
            self._publisher.move(to)
        return Move(moved=True, from_version=live, to_version=to)
