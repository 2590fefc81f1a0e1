"""Lets a conversation stay with the version that answered it, whatever is promoted meanwhile.

Only what was asked of ``denizen`` counts: a call of a named version says nothing about the next. A
version that was rolled back, rejected or tainted does not answer again; then the live one does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from agent.model_names import LIVE_NAME
from memory.episode_store import EpisodeStore
from memory.types import VersionStatus
from memory.version_store import BASE, VersionStore

NEVER_AGAIN = {VersionStatus.ROLLED_BACK, VersionStatus.REJECTED, VersionStatus.TAINTED}


class Pins:
    """Episodes and the versions that answer them."""

    def __init__(self, episodes: EpisodeStore, versions: VersionStore) -> None:
        self._finder = episodes.finder
        self._versions = versions
        self._answering: dict[str, str] = {}  # episode -> version of a call without a record yet

    def version_of(self, episode_id: str) -> str | None:
        """Return the version that should answer next; None: the live one."""
        version = self._answering.get(episode_id)
        if version is None:
            version = self._finder.last_adapter(episode_id, asked_model=LIVE_NAME)
        return version if version is not None and self._may_answer(version) else None

    @contextmanager
    def answering(self, episode_id: str, version: str) -> Iterator[None]:
        """Remember a call that runs; leave the context when it is recorded."""
        self._answering[episode_id] = version
        try:
            yield
        finally:
            self._answering.pop(episode_id, None)

    def _may_answer(self, version: str) -> bool:
        return version == BASE or self._versions.get(version).status not in NEVER_AGAIN
