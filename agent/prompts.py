"""What the engine is asked in place of what the client wrote: recalled text, harmless tokens.

By default nothing changes. What is put in stands in the last message of the user, as data; messages
stay as many, and of the roles, that the client sent. A conversation gets one block, and gets it
again at the same place with each further request, so that its prompts extend each other token for
token. The record remembers it: a call says what it was told. It does not know how anything is
recalled.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agent import metrics
from agent.exchange import Exchange
from memory.privacy import Privacy
from memory.recall import Recall, RecallError
from memory.task_texts import asked
from memory.types import Message


@dataclass(frozen=True, slots=True)
class Given:
    """A block that a conversation got."""

    told: Mapping[str, Any]  # as the record keeps it
    number: int  # of the user's message that it stands in, counted from 0
    digest: str  # of that message, as the client wrote it

    def stands_in(self, users: Sequence[Message]) -> bool:
        """Say whether the message is still there."""
        return self.number < len(users) and _digest(users[self.number]) == self.digest


class Prompts:
    """Prepares what is sent to the engine.

    Args:
        privacy: decides over control tokens.
        recall: finds earlier work.
        told: returns what memory put into a recorded call's prompt, None where nothing.
    """

    def __init__(
        self,
        privacy: Privacy,
        recall: Recall,
        told: Callable[[str], Mapping[str, Any] | None],
    ) -> None:
        self._privacy = privacy
        self._recall = recall
        self._told = told
        self._erased: set[str] = set()  # while this process lives

    async def prepare(self, exchange: Exchange) -> dict[str, Any]:
        """Return the body for the engine; note on the exchange what was recalled."""
        body = exchange.ask.body
        written: Sequence[Message] | None = body.get("messages")
        if written is None:  # a raw prompt is the client's own
            return body
        messages = self._privacy.sent(written)
        given = await self._block(exchange, written) if self.is_wanted(exchange) else None
        if given is not None:
            exchange.recalled = {
                **given.told,
                "message": given.number,
                "digest": given.digest,
            }
            messages = _with_block(messages, given)
        return body if messages is written else body | {"messages": messages}

    def forget(self, episode_ids: Collection[str]) -> None:
        """Put nothing of erased episodes into a prompt, though it may have been read before."""
        self._erased.update(episode_ids)

    def is_wanted(self, exchange: Exchange) -> bool:
        """Say whether memory may add to this request's prompt."""
        asked = exchange.options.recall
        return self._recall.config.enabled if asked is None else asked

    async def _block(self, exchange: Exchange, messages: Sequence[Message]) -> Given | None:
        """Return the block of a conversation; where it has none, one for a user's new words.

        Amid the calls of tools nothing is put in: the prompt has been answered once as it is.
        """
        users = [message for message in messages if message.get("role") == "user"]
        given = self._given_before(exchange)
        if given is not None and given.stands_in(users):
            return given
        if not messages or messages[-1].get("role") != "user":
            return None
        episode, is_new = exchange.place.episode, exchange.place.parent_id is None
        try:
            found = await self._recall.recall(
                asked(users if is_new else users[-1:], ""),
                tenant=episode.tenant,
                task_key=exchange.ask.metadata.task,
                but=episode.id,
            )
        except RecallError as error:
            reason = "late" if isinstance(error, TimeoutError) else "failed"
            metrics.RECALLS_MISSED.labels(reason).inc()
            return None
        told = None if found is None else found.told()
        if told is None or self._quotes_erased(told):
            metrics.RECALLS_MISSED.labels("nothing").inc()
            return None
        metrics.RECALLED.inc()
        return Given(told, len(users) - 1, _digest(users[-1]))

    def _given_before(self, exchange: Exchange) -> Given | None:
        """Return the block of the request that this one goes on from."""
        parent_id = exchange.place.parent_id
        told = None if parent_id is None else self._told(parent_id)
        if told is None or told["block"] is None or self._quotes_erased(told):
            return None
        return Given(told, told["message"], told["digest"])

    def _quotes_erased(self, told: Mapping[str, Any]) -> bool:
        return any(one["id"] in self._erased for one in told["episodes"])


def _with_block(messages: Sequence[Message], given: Given) -> list[Message]:
    """Put a block before the words of a user's message."""
    places = [index for index, one in enumerate(messages) if one.get("role") == "user"]
    place, block = places[given.number], given.told["block"]
    content = messages[place].get("content")
    if isinstance(content, list):
        held: Any = [{"type": "text", "text": block}, *content]
    else:
        held = f"{block}\n\n{content or ''}"
    return [*messages[:place], messages[place] | {"content": held}, *messages[place + 1 :]]


def _digest(message: Message) -> str:
    return hashlib.blake2b(orjson.dumps(message.get("content")), digest_size=12).hexdigest()
