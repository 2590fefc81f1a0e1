"""The record as JSON lines: one episode a line, with its calls, grades and feedback.

Read page by page, so that a record of any size takes the memory of one episode. It does not know
where the lines go.
"""

from collections.abc import Iterator
from datetime import datetime

import orjson

from memory.episode_store import EpisodeStore
from memory.errors import NotFoundError

PAGE = 200


def exported(
    episodes: EpisodeStore, *, since: datetime | None = None, session: str | None = None
) -> Iterator[bytes]:
    """Yield episodes as JSON lines, oldest first.

    Args:
        episodes: as the caller sees them.
        since: only those that began at this instant or later.
        session: only those of this session.
    """
    after = ""
    while ids := episodes.ids_after(after, since=since, session=session, limit=PAGE):
        for episode_id in ids:
            try:
                yield _line(episodes, episode_id)
            except NotFoundError:  # erased meanwhile
                continue
        after = ids[-1]


def _line(episodes: EpisodeStore, episode_id: str) -> bytes:
    episode = episodes.get(episode_id)
    return orjson.dumps(
        {
            "episode": episode,
            "outcome": episodes.outcome(episode_id),
            "calls": episodes.calls(episode_id),
            "grades": episodes.grades(episode_id),
            "feedback": episodes.feedback(episode_id),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )
