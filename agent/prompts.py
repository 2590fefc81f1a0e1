"""What the engine is asked in place of what the client wrote: recalled text, harmless tokens.

By default nothing changes. What is put in stands in the last message of the user, as data; messages
stay as many, and of the roles, that the client sent. A conversation gets one block, and gets it
again at the same place with each further request, so that its prompts extend each other token for
token. It does not know how anything is recalled.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from agent import metrics
from agent.exchange import Exchange
from memory.errors import NotFoundError
from memory.privacy import Privacy
from memory.recall import Recall, RecallError
from memory.types import Call, Message, message_text

MAX_CONVERSATIONS = 10_000  # whose blocks are remembered in memory; of others the record tells


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
        find_call: returns a recorded call, for what was recalled before a restart.
    """

    def __init__(self, privacy: Privacy, recall: Recall, find_call: Callable[[str], Call]) -> None:
        self._privacy = privacy
        self._recall = recall
        self._find_call = find_call
        self._given: OrderedDict[str, Given] = OrderedDict()  # by episode

    async def prepare(self, exchange: Exchange) -> dict[str, Any]:
        """Return the body for the engine; note on the exchange what was recalled."""
        body = exchange.ask.body
        written: Sequence[Message] | None = body.get("messages")
        if written is None:  # a raw prompt is the client's own
            return body
        messages = self._privacy.sent(written)
        given = await self._block(exchange, written) if self._is_wanted(exchange) else None
        if given is not None:
            exchange.recalled = {
                **given.told,
                "message": given.number,
                "digest": given.digest,
            }
            messages = _with_block(messages, given)
        return body if messages is written else body | {"messages": messages}

    def forget(self, episode_ids: Collection[str]) -> None:
        """Forget the blocks of erased episodes, and those that quote them."""
        for episode_id, given in list(self._given.items()):
            quoted = {one["id"] for one in given.told["episodes"]}
            if episode_id in episode_ids or not quoted.isdisjoint(episode_ids):
                del self._given[episode_id]

    def _is_wanted(self, exchange: Exchange) -> bool:
        asked = exchange.options.recall
        return self._recall.config.enabled if asked is None else asked

    async def _block(self, exchange: Exchange, messages: Sequence[Message]) -> Given | None:
        """Return the block of a conversation, found anew where it has none."""
        users = [message for message in messages if message.get("role") == "user"]
        given = self._given_before(exchange)
        if given is not None and given.stands_in(users):
            return given
        if not users:
            return None
        asked, episode = exchange.ask, exchange.place.episode
        try:
            found = await self._recall.recall(
                message_text(users[-1]),
                tenant=episode.tenant,
                task_key=asked.metadata.task,
                but=episode.id,
            )
        except RecallError as error:
            reason = "late" if isinstance(error, TimeoutError) else "failed"
            metrics.RECALLS_MISSED.labels(reason).inc()
            return None
        if found is None:
            metrics.RECALLS_MISSED.labels("nothing").inc()
            return None
        metrics.RECALLED.inc()
        given = Given(found.told(), len(users) - 1, _digest(users[-1]))
        self._given[episode.id] = given
        if len(self._given) > MAX_CONVERSATIONS:
            self._given.popitem(last=False)
        return given

    def _given_before(self, exchange: Exchange) -> Given | None:
        """Return the block of an earlier request of the conversation."""
        known = self._given.get(exchange.place.episode.id)
        if known is not None or exchange.place.parent_id is None:
            return known
        try:
            told = self._find_call(exchange.place.parent_id).recalled
        except NotFoundError:
            return None
        if told is None or told["block"] is None:
            return None
        return Given(told, told["message"], told["digest"])


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
