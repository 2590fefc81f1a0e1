"""Which recorded call a request descends from, and how.

The strongest evidence comes first: the same messages and answers, then the same request again, then
answers and texts that are quoted, then a session's name. What is shared by several conversations
proves nothing by itself; where two remain equal, the one that nobody has followed yet is taken. It
writes nothing.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.quotes import Hit, QuoteIndex, QuoteKind
from agent.sessions import Keys, spoken
from memory.call_finder import Recorded
from memory.episode_store import EpisodeStore
from memory.types import Call, CallStatus, Edge, Message, utc_now

RETRIED_WITHIN_S = 600.0
"""After a failure, how long the same first request counts as another attempt; clients that retry do
so within seconds or a few minutes.
"""
QUOTED_WITHIN_S = 900.0
"""How long a first request that repeats a user's words counts as a side call of that conversation:
titles and summaries are asked for beside an answer, and later people may quote each other.
"""
MAX_TWINS = 32  # conversations that are equal up to an answer and are looked at
MAX_ATTEMPTS = 16  # at one request that are looked at
MIN_SHARED_WORDS = 12  # of recorded answers in a history that was written anew
MAX_OWNERS = 8  # conversations that open with one text; more, and it is a common phrase


@dataclass(frozen=True, slots=True)
class Kin:
    """What a request descends from."""

    episode_id: str
    parent_id: str | None
    edge: Edge


class Lineage:
    """Finds what a request descends from.

    Args:
        episodes: what is recorded.
        quotes: the texts that may be quoted.
        followed: calls that a running request continues, and by how many.

    Attributes:
        failed_at: when a call failed last, in seconds since the epoch; whoever records sets it.
    """

    def __init__(
        self, episodes: EpisodeStore, quotes: QuoteIndex, followed: Mapping[str, int]
    ) -> None:
        self._episodes = episodes
        self._finder = episodes.finder
        self._quotes = quotes
        self._followed = followed
        self.failed_at = float("-inf")

    def named(self, call: Call, keys: Keys) -> Kin:
        """Return the place of a request whose client names the call that it goes on from."""
        parent = self._finder.recorded(call.id)
        return Kin(parent.episode_id, parent.call_id, self._edge_below(parent, keys))

    def continued(self, messages: Sequence[Message], keys: Keys, *, scope: str) -> Kin | None:
        """Return the call whose messages and answer a request begins with."""
        newest, earlier = keys.answers[:1], keys.answers[1:]
        found = self._finder.find_answered(newest, limit=MAX_TWINS)
        if not found and (kin := self._extended(messages, keys)) is not None:
            return kin
        found = found or self._finder.find_answered(earlier, limit=MAX_TWINS)
        if not found:
            return None
        parent = min(found, key=lambda call: self._strangeness(call, keys))
        if parent.answer != keys.answers[0]:  # it goes on with answers that were not given to it
            rewritten = self.rewritten(messages, scope=scope)
            return rewritten or Kin(parent.episode_id, parent.call_id, Edge.COMPACTION)
        return Kin(parent.episode_id, parent.call_id, self._edge_below(parent, keys))

    def _extended(self, messages: Sequence[Message], keys: Keys) -> Kin | None:
        """Return the call whose answer came back with more behind it.

        Some programs write what they did below the answers that they send back: smolagents, which
        tools it called.
        """
        if keys.before is None:
            return None
        attempts = self._finder.find_requested(keys.before, limit=MAX_ATTEMPTS)
        said = next(one for one in reversed(messages[:-1]) if one.get("role") == "assistant")
        theirs = [one for one in attempts if self._begins_with_answer(said, one.call_id)]
        if not theirs:
            return None
        parent = min(theirs, key=self._is_followed)
        edge = self._edge_below(parent, keys)
        return Kin(
            parent.episode_id,
            parent.call_id,
            Edge.RERENDERED if edge is Edge.CONTINUATION else edge,
        )

    def _begins_with_answer(self, said: Message, call_id: str) -> bool:
        answer = self._episodes.call(call_id).message
        if answer is None or said.get("tool_calls"):
            return False
        names = [call["function"]["name"] for call in answer.get("tool_calls") or ()]
        now, before = spoken(said), spoken(answer)
        return bool(before or names) and now.startswith(before) and all(n in now for n in names)

    def _is_followed(self, call: Recorded) -> bool:
        return call.is_continued or self._followed.get(call.call_id, 0) > 0

    def _strangeness(self, call: Recorded, keys: Keys) -> tuple[int, bool, bool]:
        """Rank the calls that a request may continue; the smallest fits best."""
        rank = keys.answers.index(call.answer or "")
        return rank, call.system != keys.system, self._is_followed(call)

    def _edge_below(self, parent: Recorded, keys: Keys) -> Edge:
        if self._is_followed(parent):
            attempts = self._finder.find_requested(keys.request, limit=MAX_ATTEMPTS)
            is_retry = any(one.parent_id == parent.call_id for one in attempts)
            return Edge.RETRY if is_retry else Edge.FORK
        return Edge.CONTINUATION if parent.system == keys.system else Edge.RERENDERED

    def attempted(self, keys: Keys, *, is_same_speaker: bool) -> Kin | None:
        """Return the place of an earlier attempt at this very request.

        Two speakers may well begin with the same words: without a name, only what failed a moment
        ago is tried again.
        """
        if not is_same_speaker and time.time() - self.failed_at > RETRIED_WITHIN_S:
            return None
        newest = next(iter(self._finder.find_requested(keys.request, limit=1)), None)
        if newest is None:
            return None
        age_s = (utc_now() - newest.created_at).total_seconds()
        has_failed = newest.status is not CallStatus.OK and age_s < RETRIED_WITHIN_S
        if not (is_same_speaker or has_failed):
            return None
        return Kin(newest.episode_id, newest.parent_id, Edge.RETRY)

    def rewritten(self, messages: Sequence[Message], *, scope: str) -> Kin | None:
        """Return the conversation whose answers stand in a history that was shortened."""
        hits = self._quotes.find_answers(messages, scope=scope)
        owners = _owners(hits)
        votes: dict[str, float] = defaultdict(float)
        for hit in {(hit.digest, hit.source.episode_id): hit for hit in hits}.values():
            votes[hit.source.episode_id] += hit.num_words / len(owners[hit.digest])
        if not votes or max(votes.values()) < MIN_SHARED_WORDS:
            return None
        episode_id = max(votes, key=lambda one: votes[one])
        parent = [hit.source for hit in hits if hit.source.episode_id == episode_id][-1]
        return Kin(episode_id, parent.call_id, Edge.COMPACTION)

    def quoted(self, messages: Sequence[Message], keys: Keys, *, scope: str) -> Kin | None:
        """Return the conversation whose texts a first request quotes, and what it is for."""
        found = self._quotes.find(messages, scope=scope)
        owners, now = _owners(found), time.time()
        hits = [
            hit
            for hit in found
            if hit.kind is not QuoteKind.USER
            or (
                len(owners[hit.digest]) <= MAX_OWNERS
                and now - hit.source.noted_at < QUOTED_WITHIN_S
            )
        ]
        if not hits:
            return None
        theirs = _most_quoted(hits)
        edge, told_by = _purpose(theirs, keys)
        for source in {id(hit.source): hit.source for hit in theirs}.values():
            source.num_quoted += 1
        source = told_by[-1].source
        for earlier in self._finder.find_requested(keys.request, limit=MAX_ATTEMPTS):
            if earlier.episode_id == source.episode_id:
                return Kin(source.episode_id, earlier.parent_id, Edge.RETRY)
        return Kin(source.episode_id, source.call_id, edge)


def _owners(hits: Iterable[Hit]) -> dict[str, set[str]]:
    """Return, for each text, the episodes in which it was said."""
    owners: dict[str, set[str]] = defaultdict(set)
    for hit in hits:
        owners[hit.digest].add(hit.source.episode_id)
    return owners


def _most_quoted(hits: Sequence[Hit]) -> list[Hit]:
    """Return the hits of the episode with most texts; among equals, of the least used, newest."""
    by_episode: dict[str, list[Hit]] = defaultdict(list)
    for hit in hits:
        by_episode[hit.source.episode_id].append(hit)

    def rank(theirs: list[Hit]) -> tuple[int, int, float]:
        used = max(hit.source.num_quoted for hit in theirs)
        return len({hit.digest for hit in theirs}), -used, theirs[-1].source.noted_at

    return max(by_episode.values(), key=rank)


def _purpose(hits: Sequence[Hit], keys: Keys) -> tuple[Edge, Sequence[Hit]]:
    """Say what a request that quotes a conversation is for, and the hits that tell so."""
    by_kind: dict[QuoteKind, list[Hit]] = defaultdict(list)
    for hit in hits:
        by_kind[hit.kind].append(hit)
    answers, arguments = by_kind[QuoteKind.ANSWER], by_kind[QuoteKind.ARGUMENT]
    told_elsewhere = {hit.digest for hit in (*answers, *arguments)}
    has_user = any(hit.digest not in told_elsewhere for hit in by_kind[QuoteKind.USER])
    num_answers = len({hit.source.call_id for hit in answers})
    if arguments and not answers:
        return Edge.SUB_AGENT, arguments
    if has_user or num_answers > 1 or not answers:
        return Edge.SIDE_CALL, hits
    newest = answers[-1].source
    is_summary = newest.edge is Edge.SIDE_CALL or newest.system == keys.system
    return (Edge.COMPACTION if is_summary else Edge.SUB_AGENT), answers
