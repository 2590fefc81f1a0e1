"""What is to be erased, as an operator names it. It does not know how that is done."""

import hashlib
from dataclasses import dataclass

from memory.errors import InvalidRequestError
from memory.tenants import Sight
from memory.types import Episode


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What is to be erased: one episode or task, or all of a session, a user, or a tenant.

    A task's episodes are the practice on it; that it was made of, if any, is not.

    Example:
        ``Scope(session="s-17", tenant="acme")``: a session or user may be narrowed to a tenant.
    """

    episode: str | None = None
    task: str | None = None
    session: str | None = None
    user: str | None = None
    tenant: str | None = None

    def __post_init__(self) -> None:
        named = [self.episode, self.task, self.session, self.user]
        if sum(one is not None for one in named) > 1 or (self.is_single and self.tenant):
            raise InvalidRequestError("name one of episode, task, session and user")
        if not any(self.parts):
            raise InvalidRequestError("name an episode, a task, a session, a user or a tenant")
        if self.tenant is not None:
            Sight(self.tenant)

    @property
    def is_single(self) -> bool:
        """Whether one episode or task is named, and not what may grow meanwhile."""
        return self.episode is not None or self.task is not None

    @property
    def parts(self) -> dict[str, str]:
        """What is named, by kind."""
        names = ("episode", "task", "session", "user", "tenant")
        named = {name: getattr(self, name) for name in names}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def kind(self) -> str:
        """What is named, in words: ``session of tenant``."""
        return " of ".join(self.parts)

    @property
    def sha256(self) -> str:
        """What is named, as the audit keeps it."""
        return hashlib.sha256("\0".join(self.parts.values()).encode()).hexdigest()

    @property
    def condition(self) -> tuple[str, tuple[str, ...]]:
        """What finds its episodes, as SQL over ``episodes``."""
        clauses = {
            "episode": "id = ?",
            "task": "source = 'practice' AND task_id = ?",
            "session": "(session = ? OR id IN (SELECT episode_id FROM calls WHERE session = ?))",
            "user": "user = ?",
            "tenant": "tenant = ?",
        }
        named = self.parts
        values = [[value] * clauses[kind].count("?") for kind, value in named.items()]
        return " AND ".join(clauses[kind] for kind in named), tuple(v for vs in values for v in vs)

    def covers(self, episode: Episode, *, session: str | None) -> bool:
        """Say whether an episode, which need not be recorded yet, is within it.

        Args:
            episode: which.
            session: that of the call by which it goes on.
        """
        theirs: dict[str, set[str | None]] = {
            "episode": {episode.id},
            "task": {episode.task_id},
            "session": {episode.session, session},
            "user": {episode.user},
            "tenant": {episode.tenant},
        }
        return all(value in theirs[kind] for kind, value in self.parts.items())
