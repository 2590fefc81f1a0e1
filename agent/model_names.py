"""The names that clients use for weights, and the version behind each.

``denizen`` is whatever is live, ``denizen@candidate`` the newest candidate; both move.
``denizen@base`` and
``denizen@000007`` never change.
"""

import re
from collections.abc import Callable
from typing import Any

from memory.errors import NotFoundError
from memory.types import AdapterVersion, VersionStatus
from memory.version_store import BASE, VersionStore

LIVE_NAME = "denizen"
BASE_NAME = "denizen@base"
CANDIDATE_NAME = "denizen@candidate"
_VERSION_NAME = re.compile(r"denizen@(\d{6})", re.ASCII)


class ModelNames:
    """Resolves and lists model names."""

    def __init__(self, versions: VersionStore, live: Callable[[], str]) -> None:
        self._versions = versions
        self._live = live

    def resolve(self, name: str) -> str:
        """Return the version behind a name, or ``"base"``.

        Raises:
            NotFoundError: no model has this name, with OpenAI's code ``model_not_found``.
        """
        if name == LIVE_NAME:
            return self._live()
        if name == BASE_NAME:
            return BASE
        if name == CANDIDATE_NAME and (candidate := self._candidate()):
            return candidate.id
        if match := _VERSION_NAME.fullmatch(name):
            try:
                return self._versions.get(f"denizen-{match[1]}").id
            except NotFoundError:
                pass
        raise NotFoundError(
            f"the model {name!r} does not exist; GET /v1/models lists those that do",
            param="model",
            code="model_not_found",
        )

    def list(self) -> list[dict[str, Any]]:
        """Return every name in OpenAI's form, with vLLM's ``root`` and ``parent``."""
        versions = self._versions.all()
        live = self._live()
        entries = [_entry(LIVE_NAME, root=live, parent=BASE_NAME, created=0)]
        entries.append(_entry(BASE_NAME, root=BASE, parent=None, created=0))
        if candidate := self._candidate():
            entries.append(_version_entry(CANDIDATE_NAME, candidate))
        return entries + [_version_entry(public_name(version.id), version) for version in versions]

    def _candidate(self) -> AdapterVersion | None:
        versions = self._versions.all()
        return next((v for v in versions if v.status is VersionStatus.CANDIDATE), None)


def public_name(version: str) -> str:
    """Return how clients name a version: ``denizen-000007`` -> ``denizen@000007``."""
    return BASE_NAME if version == BASE else version.replace("-", "@", 1)


def _version_entry(name: str, version: AdapterVersion) -> dict[str, Any]:
    created = int(version.created_at.timestamp())
    return _entry(name, root=version.id, parent=public_name(version.parent), created=created)


def _entry(name: str, *, root: str, parent: str | None, created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "denizen",
        "root": root,
        "parent": parent,
    }
