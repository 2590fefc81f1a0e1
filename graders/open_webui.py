"""Open WebUI's rating of an answer, as what was said here of a completion or an episode.

Open WebUI numbers chats and messages by itself: a rating names those, and carries the chat. Which
answer is meant is found by the chat's id, under which Open WebUI can be told to name its session,
and by the rated message's text. The form: ``backend/open_webui/models/feedbacks.py``
(``FeedbackForm``) and ``ResponseMessage.svelte`` of open-webui.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from graders.feedback import FeedbackBody, read_feedback
from memory.episode_store import EpisodeStore
from memory.errors import NotFoundError
from memory.types import message_text
from memory.wire import parse_body

SOURCE = "open-webui"  # one source is enough: a chat has one owner, and only the owner rates
MAX_EPISODES = 100  # of one chat

# Thinking and tool calls are written into the shown text like this.
_SHOWN_BESIDE = re.compile(r"<details\b.*?</details>", re.DOTALL)

HOW_TO_LINK = (
    "set ENABLE_FORWARD_USER_INFO_HEADERS=True and "
    "FORWARD_SESSION_INFO_HEADER_CHAT_ID=x-denizen-session in Open WebUI, or send completion_id"
)


class _Foreign(BaseModel):
    """A part of the payload; what it holds besides is Open WebUI's business."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class RatingData(_Foreign):
    """What was said."""

    rating: Literal[1, -1, "1", "-1"]
    reason: str | None = None
    comment: str | None = None


class RatingMeta(_Foreign):
    """Of what it was said."""

    chat_id: str = Field(min_length=1, max_length=200)
    message_id: str = Field(min_length=1, max_length=200)


class Rating(_Foreign):
    """The body that Open WebUI posts to ``evaluations/feedback``."""

    type: Literal["rating"]
    data: RatingData
    meta: RatingMeta
    snapshot: dict[str, Any] | None = None

    @property
    def comment(self) -> str | None:
        """The chosen reason and the free words."""
        said = (self.data.reason, self.data.comment)
        return ": ".join(words for words in said if words) or None

    @property
    def text(self) -> str | None:
        """The rated message's own text; None where the chat was not sent along."""
        found: Any = self.snapshot
        for key in ("chat", "chat", "history", "messages", self.meta.message_id, "content"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return _SHOWN_BESIDE.sub("", found).strip() if isinstance(found, str) else None


def read_rating(body: object, episodes: EpisodeStore) -> FeedbackBody:
    """Read a rating and find what it is about.

    Raises:
        InvalidRequestError: it is no rating of Open WebUI's form; names the key.
        NotFoundError: no answer recorded here is the rated one; says how to link the two.
    """
    rating = parse_body(Rating, body)
    said = {"value": int(rating.data.rating) > 0, "comment": rating.comment, "source": SOURCE}
    return read_feedback(_target(rating, episodes) | said)


def _target(rating: Rating, episodes: EpisodeStore) -> dict[str, Any]:
    chat_id, message_id = rating.meta.chat_id, rating.meta.message_id
    with suppress(NotFoundError):  # a front end that keeps the completion's own id
        episodes.episode_of_call(message_id)
        return {"completion_id": message_id}
    in_chat = [row["id"] for row in episodes.page(limit=MAX_EPISODES, session=chat_id)]
    if not in_chat:
        raise NotFoundError(f"no session is named {chat_id!r}: {HOW_TO_LINK}", param="meta.chat_id")
    if rating.text is None and len(in_chat) == 1:
        return {"episode_id": in_chat[0]}
    for episode_id in in_chat:
        for call in episodes.answers(episode_id):
            if call["message"] and rating.text == message_text(call["message"]).strip():
                return {"completion_id": call["id"]}
    reason = f"no answer in session {chat_id!r} has the text of message {message_id!r}"
    raise NotFoundError(reason, param="meta.message_id")
