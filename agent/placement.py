"""Where a request belongs: its episode, the call that it hangs below, and why.

The gateway asks before it answers (``place``), and hands the records over afterwards (``keep``).
What is recorded is found by key in the database; what still runs, and what may be quoted, is held
in memory, bounded. It does not know how a request is answered, nor what is learned from it.
"""

import asyncio
import dataclasses
import time
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from agent.episode_search import EpisodeSearch
from agent.lineage import Lineage
from agent.quotes import (
    MAX_CALLS,
    Quotable,
    QuoteIndex,
    QuoteKind,
    Source,
    answered_texts,
    asked_texts,
)
from agent.running_requests import Asked, Place, RunningRequests
from agent.sessions import Keys, scope_of
from memory.episode_store import EpisodeStore
from memory.erasure_scope import Scope
from memory.group_write import Kept
from memory.privacy import Checked, Privacy
from memory.recording import CallKeys
from memory.types import Call, CallStatus, Edge, Episode

__all__ = ["Asked", "Place", "Placement", "Placing"]


class Placement:
    """Finds places, and keeps what was answered where it belongs.

    Args:
        episodes: the record.
        privacy: decides what of an answer may go into it.
    """

    def __init__(self, episodes: EpisodeStore, privacy: Privacy | None = None) -> None:
        self._episodes = episodes
        self._privacy = privacy or Privacy()
        self._running = RunningRequests()
        self._quotes = QuoteIndex()
        self._erased: set[str] = set()  # while this process lives
        self._lineage = Lineage(episodes, self._quotes, self._running.followed)
        self._search = EpisodeSearch(episodes, self._privacy, self._running, self._lineage)
        self._load_quotes()

    def placing(self, asked: Asked) -> "Placing":
        """Begin to look for the place of a request."""
        keys = Keys.of(asked.messages, scope=asked.scope)
        if asked.retry_key is not None:
            keys = dataclasses.replace(keys, request=f"{asked.scope}:{asked.retry_key}")
        return Placing(self, asked, keys)

    def place(self, asked: Asked) -> Place:
        """Return the episode that a request belongs to, and the call that it hangs below."""
        return self.placing(asked).place

    def place_of(self, asked: Asked, keys: Keys) -> Place:
        """Do the same for a request whose keys are known."""
        episode, parent_id, edge = self._search.find(asked, keys)
        place = Place(
            asked=asked,
            keys=keys,
            episode=episode,
            parent_id=parent_id,
            edge=edge,
            source=Source(episode_id=episode.id, scope=asked.scope, system=keys.system, edge=edge),
            texts=asked_texts(asked.messages) if asked.record else (),
            checked=self._checked(asked),
        )
        if asked.record:
            self._running.add(place)
            self._quotes.add(place.source, place.texts)
        return place

    @property
    def is_settled(self) -> bool:
        """Whether all that was answered can be read in the record."""
        return self._episodes.incoming.is_settled

    def hides(self, keys: Keys) -> bool:
        """Say whether what a request may descend from cannot be found before ``settled``."""
        return self._running.hides(keys) and not self.is_settled

    async def settled(self) -> None:
        """Wait until all that was kept before can be found."""
        await self._episodes.incoming.settled()

    @property
    def trouble(self) -> str | None:
        """Why what was kept is not in the record yet; None while nothing is wrong."""
        return self._episodes.incoming.trouble

    def keep(self, place: Place, calls: Sequence[Call]) -> Kept:
        """Store the calls of one answer at their place. Long texts are cleaned in a thread."""
        try:
            kept = self._begin_to_keep(place, calls)
        except BaseException:
            self._running.discard(place)
            raise
        kept.written.add_done_callback(lambda _: self._running.discard(place))
        return kept

    def _begin_to_keep(self, place: Place, calls: Sequence[Call]) -> Kept:
        values: list[Any] = [call.message for call in calls]
        if place.checked is None:
            values.append(calls[0].request)
        if self._privacy.takes_long(*values):
            written = asyncio.ensure_future(self._keep_long(place, calls))
            return Kept(safe=written, written=written)
        kept = self._privacy.kept(place.episode, calls, place.checked)
        return self._store(place, calls, *kept)

    def _checked(self, asked: Asked) -> Checked | None:
        """Look through a request while it is answered; a long one is left to a thread."""
        if asked.request is None or not asked.record or self._privacy.takes_long(asked.request):
            return None
        return self._privacy.checked(asked.request)

    async def _keep_long(self, place: Place, calls: Sequence[Call]) -> None:
        kept = await asyncio.to_thread(self._privacy.kept, place.episode, calls)
        await self._store(place, calls, *kept).written

    def _store(
        self, place: Place, calls: Sequence[Call], episode: Episode, stored: Sequence[Call]
    ) -> Kept:
        answered = [[] if one.message is None else answered_texts(one.message) for one in calls]
        keys = []
        for index, (call, to_store) in enumerate(zip(calls, stored, strict=True)):
            texts = [*(place.texts if index == 0 else ()), *answered[index]]
            keys.append(_call_keys(place.keys, call, _still_there(texts, call, to_store)))
        kept = self._episodes.keep(episode, stored, keys)
        if any(call.status is not CallStatus.OK for call in calls):
            self._lineage.failed_at = time.time()
        if not kept.safe.done():
            kept.written.add_done_callback(partial(self._on_written, place, calls, answered))
            return kept
        self._note(place, calls, answered)
        found_by = [one for key in keys for one in (key.answer, key.request) if one is not None]
        self._running.answered(found_by)
        kept.written.add_done_callback(lambda _: self._running.written(found_by))
        return kept

    def _on_written(
        self,
        place: Place,
        calls: Sequence[Call],
        answered: Sequence[Sequence[Quotable]],
        written: "asyncio.Future[None]",
    ) -> None:
        if written.exception() is None:
            self._note(place, calls, answered)

    def _note(
        self, place: Place, calls: Sequence[Call], answered: Sequence[Sequence[Quotable]]
    ) -> None:
        """Let other requests quote what was answered."""
        if place.episode.id in self._erased:
            return
        place.source.call_id = calls[0].id
        for call, texts in zip(calls, answered, strict=True):
            self._quotes.add(dataclasses.replace(place.source, call_id=call.id), texts)

    def running(self, scope: Scope) -> Collection[str]:
        """Return the episodes of a scope that are being answered, whose records may not be yet."""
        return self._running.within(scope)

    def forget(self, episode_ids: Collection[str]) -> None:
        """Let no request find a way to erased episodes, whose answers may still run."""
        self._erased.update(episode_ids)
        self._running.forget(episode_ids)
        self._quotes.forget(episode_ids)

    def _load_quotes(self) -> None:
        """Remember what the newest recorded calls said, and whether one failed."""
        if (failed_at := self._episodes.finder.newest_failure(MAX_CALLS)) is not None:
            self._lineage.failed_at = failed_at.timestamp()
        for row in self._episodes.finder.newest_quotes(MAX_CALLS):
            source = Source(
                episode_id=row["episode_id"],
                scope=scope_of(row["session"], row["user"], row["tenant"]),
                system=row["system_key"],
                edge=None if row["edge"] is None else Edge(row["edge"]),
                call_id=row["id"],
                noted_at=datetime.fromisoformat(row["created_at"]).timestamp(),
            )
            self._quotes.add(source, [Quotable(QuoteKind(k), *rest) for k, *rest in row["quotes"]])


class Placing:
    """The search for one request's place, made once, when it can succeed or must."""

    def __init__(self, placement: Placement, asked: Asked, keys: Keys) -> None:
        self._placement = placement
        self._asked = asked
        self._keys = keys
        self._place: Place | None = None

    @property
    def is_done(self) -> bool:
        """Whether the place has been found."""
        return self._place is not None

    @property
    def is_possible(self) -> bool:
        """Whether all that the request may descend from can be found now."""
        return not self._placement.hides(self._keys)

    @property
    def place(self) -> Place:
        """The place.

        Raises:
            StoreError: the record cannot be read.
        """
        if self._place is None:
            self._place = self._placement.place_of(self._asked, self._keys)
        return self._place


def _call_keys(keys: Keys, call: Call, texts: Sequence[Quotable]) -> CallKeys:
    return CallKeys(
        answer=None if call.message is None else keys.answered_by(call.message),
        system=keys.system,
        request=keys.request,
        quotes=[(text.kind, text.anchor, text.num_words, text.digest) for text in texts],
    )


def _still_there(texts: Sequence[Quotable], call: Call, stored: Call) -> Sequence[Quotable]:
    """Return what may be quoted of a call and may be stored.

    The first words of a text stand in the file, and a hash of a short secret can be guessed.
    """
    if stored.request is call.request and stored.message is call.message:
        return texts
    left = set(asked_texts(stored.request.get("messages") or ()))
    left |= set(answered_texts(stored.message)) if stored.message else set()
    return [text for text in texts if text in left]
