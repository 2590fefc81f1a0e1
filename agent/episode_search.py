"""Which episode a request belongs to, among those recorded and those being answered.

What a request descends from, ``lineage`` tells; here the evidence is taken in its order, and left
where it would join what two callers ask. It changes nothing.
"""

from collections.abc import Iterator, Sequence

from agent.lineage import Kin, Lineage
from agent.running_requests import Asked, RunningRequests
from agent.sessions import Keys
from memory.episode_store import EpisodeStore
from memory.errors import NotFoundError
from memory.privacy import Privacy
from memory.tenants import Sight
from memory.types import Edge, Episode, EpisodeSource, Message, new_id, task_text, utc_now


class EpisodeSearch:
    """Looks for the episodes of requests.

    Args:
        episodes: what is recorded.
        privacy: compares what is told with what was stored of it.
        running: what is being answered.
        lineage: what a request descends from.
    """

    def __init__(
        self,
        episodes: EpisodeStore,
        privacy: Privacy,
        running: RunningRequests,
        lineage: Lineage,
    ) -> None:
        self._episodes = episodes
        self._privacy = privacy
        self._running = running
        self._lineage = lineage

    def find(self, asked: Asked, keys: Keys) -> tuple[Episode, str | None, Edge | None]:
        """Return the episode of a request, a new one perhaps, and the call it hangs below and how.

        Raises:
            StoreError: the record cannot be read.
        """
        if asked.continues is not None:
            near: Kin | None = self._lineage.named(asked.continues, keys)
        else:
            near = self._lineage.continued(asked.messages, keys, scope=asked.scope)
        episode = None if near is None else self._episode_of(near)
        if near is not None and episode is not None and asked.user in {None, episode.user}:
            return episode, near.parent_id, near.edge  # another user's words would be taken for its
        for kin in self._distant_kin(asked, keys):
            episode = self._episode_of(kin)
            if episode is not None and self._is_same_task(episode, asked):
                return episode, kin.parent_id, kin.edge
        return _begin(asked), None, None

    def _distant_kin(self, asked: Asked, keys: Keys) -> Iterator[Kin]:
        """Yield what a request may descend from that goes on from no call word for word.

        The strongest evidence comes first.
        """
        lineage, messages, scope = self._lineage, asked.messages, asked.scope
        running = self._running.attempt(keys) if asked.is_same_speaker else None
        if running is not None:
            yield Kin(running.episode.id, running.parent_id, Edge.RETRY)
        if (kin := lineage.attempted(keys, is_same_speaker=asked.is_same_speaker)) is not None:
            yield kin
        quoted = (
            lineage.rewritten(messages, scope=scope)
            if _has_answers(messages)
            else lineage.quoted(messages, keys, scope=scope)
        )
        if quoted is not None:
            yield quoted
        if (newest := self._newest_of(asked)) is not None:
            yield Kin(newest, None, Edge.SESSION)

    def _episode_of(self, kin: Kin) -> Episode | None:
        """Return the episode, recorded or about to be; None when it was erased meanwhile."""
        running = self._running.episode(kin.episode_id)
        if running is not None:
            return running
        try:
            return self._episodes.get(kin.episode_id)
        except NotFoundError:
            return None

    def _newest_of(self, asked: Asked) -> str | None:
        """Return the newest episode of a user's named session, recorded or about to be.

        Who names no user joins the newest of any.
        """
        if asked.session is None:
            return None
        running = self._running.in_session(asked.session, asked.tenant, asked.user)
        if running is not None:
            return running.id
        seen = self._episodes.seen_by(Sight(asked.tenant))
        return seen.session_episode(asked.session, user=asked.user)

    def _is_same_task(self, episode: Episode, asked: Asked) -> bool:
        """Say whether what a caller tells of a request fits an episode.

        Nothing told fits every one.
        """
        told, known = (asked.task, asked.grader), (episode.task_key, episode.grader)
        if any(new not in {None, old} for new, old in zip(told, known, strict=True)):
            return False
        reference = asked.reference
        return reference is None or self._privacy.is_same(reference, episode.reference)


def _begin(asked: Asked) -> Episode:
    return Episode(
        id=new_id("ep"),
        created_at=utc_now(),
        source=EpisodeSource.HARNESS if asked.session else EpisodeSource.CHAT,
        task_text=task_text(asked.messages),
        task_key=asked.task,
        reference=asked.reference,
        grader=asked.grader,
        user=asked.user,
        session=asked.session,
        tenant=asked.tenant,
        learn=asked.learn,
    )


def _has_answers(messages: Sequence[Message]) -> bool:
    return any(message.get("role") == "assistant" for message in messages)
