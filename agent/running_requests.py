"""Requests that are answered now, or a moment ago: what is asked, and where it belongs.

Nothing of them is in the file yet, so that the database cannot find them. It reads or writes
nothing.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.quotes import Quotable, Source
from agent.sessions import Keys, scope_of
from memory.erasure_scope import Scope
from memory.privacy import Checked
from memory.types import GOES_ON, Call, Edge, Episode, Message

MAX_RUNNING = 10_000  # requests remembered while they are answered


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is known of a request before it is answered, whatever dialect it came in.

    Example:
        ``Asked(messages=[{"role": "user", "content": "3 * 4 = ?"}], reference="12")``
    """

    messages: Sequence[Message]  # the history as chat messages
    request: Mapping[str, Any] | None = None  # as the record keeps it; None: not known yet
    continues: Call | None = None  # named by the client, which need not be searched
    session: str | None = None  # named by path or header
    user: str | None = None
    tenant: str | None = None  # whose key it came with
    task: str | None = None
    reference: str | None = None
    grader: str | None = None
    learn: bool = True
    record: bool = True
    retry_key: str | None = None  # the same for every attempt at one request
    is_retry: bool = False  # the client says that it tried before

    @property
    def scope(self) -> str:
        """Who speaks."""
        return scope_of(self.session, self.user, self.tenant)

    @property
    def is_same_speaker(self) -> bool:
        """Whether an equal request can only come from the same caller."""
        return self.session is not None or self.retry_key is not None or self.is_retry


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The place of one request in the record."""

    asked: Asked
    keys: Keys
    episode: Episode
    parent_id: str | None = None  # the call that this one hangs below
    edge: Edge | None = None  # why it belongs to its episode; None: it begins it
    source: Source  # whose texts other requests may quote
    texts: Sequence[Quotable]  # which, of what was asked
    checked: Checked | None = None  # the request as it may be stored; None: to be looked through


class RunningRequests:
    """The places of running requests, by what finds them."""

    def __init__(self, max_places: int = MAX_RUNNING) -> None:
        self._max_places = max_places
        self._places: OrderedDict[int, Place] = OrderedDict()
        self._by_request: dict[str, Place] = {}
        self._by_session: dict[tuple[str | None, ...], Place] = {}  # tenant, name, and user if any
        self._by_episode: dict[str, Place] = {}
        self._unwritten: Counter[str] = Counter()  # keys of calls that are safe
        self.followed: Counter[str] = Counter()  # call -> running requests that hang below it

    def add(self, place: Place) -> None:
        """Remember a place; one that never ended is forgotten when there are too many."""
        self._places[id(place)] = place
        self._by_request[place.keys.request] = place
        self._by_episode[place.episode.id] = place
        for named in _session_names(place.asked):
            self._by_session[named] = place
        if place.parent_id is not None and place.edge in GOES_ON:
            self.followed[place.parent_id] += 1
        if len(self._places) > self._max_places:
            self.discard(next(iter(self._places.values())))

    def discard(self, place: Place) -> None:
        """Forget a place, if it is remembered."""
        if self._places.pop(id(place), None) is None:
            return
        if self._by_request.get(place.keys.request) is place:
            del self._by_request[place.keys.request]
        if self._by_episode.get(place.episode.id) is place:
            del self._by_episode[place.episode.id]
        for named in _session_names(place.asked):
            if self._by_session.get(named) is place:
                del self._by_session[named]
        if place.parent_id is not None and place.edge in GOES_ON:
            self.followed[place.parent_id] -= 1
            if not self.followed[place.parent_id]:
                del self.followed[place.parent_id]

    def answered(self, keys: Collection[str]) -> None:
        """Say that calls with these keys are safe, though not in the file yet."""
        self._unwritten.update(keys)

    def written(self, keys: Collection[str]) -> None:
        """Say that they are in the file."""
        self._unwritten.subtract(keys)
        for key in keys:
            if not self._unwritten[key]:
                del self._unwritten[key]

    def hides(self, keys: Keys) -> bool:
        """Say whether a call that such a request may descend from is not in the file yet."""
        wanted = (keys.request, keys.before, *keys.answers)
        return bool(self._unwritten) and not self._unwritten.keys().isdisjoint(wanted)

    def forget(self, episode_ids: Collection[str]) -> None:
        """Forget the places in these episodes."""
        for place in [one for one in self._places.values() if one.episode.id in episode_ids]:
            self.discard(place)

    def in_session(
        self, session: str, tenant: str | None = None, user: str | None = None
    ) -> Episode | None:
        """Return the newest episode of a tenant's named session; with a user, of theirs."""
        place = self._by_session.get((tenant, session, user))
        return None if place is None else place.episode

    def within(self, scope: Scope) -> set[str]:
        """Return the episodes of the running requests that are to be erased with a scope."""
        return {
            place.episode.id
            for place in self._places.values()
            if scope.covers(place.episode, session=place.asked.session)
        }

    def episode(self, episode_id: str) -> Episode | None:
        """Return an episode that may not be recorded yet."""
        place = self._by_episode.get(episode_id)
        return None if place is None else place.episode

    def attempt(self, keys: Keys) -> Place | None:
        """Return the newest attempt at the same request."""
        return self._by_request.get(keys.request)


def _session_names(asked: Asked) -> set[tuple[str | None, ...]]:
    """Return by what a request's session is found: by its user, and by who names none."""
    if asked.session is None:
        return set()
    return {(asked.tenant, asked.session, user) for user in (asked.user, None)}
