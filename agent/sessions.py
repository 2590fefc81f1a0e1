"""Which conversation a request continues.

A conversation is recognised by a hash chain: the key of an answered call covers its messages and
its answer, so a later request that begins with exactly these continues it. The system prompt that
opens a conversation has a key of its own, so that one that is written anew with each request (the
date, the working folder) does not hide the conversation. It does not read or write anything.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from memory.types import Message, message_text

if TYPE_CHECKING:
    from hashlib import _Hash

KEY_LENGTH = 32  # hexadecimal digits: 128 bits
SYSTEM_ROLES = {"system", "developer"}
THOUGHT_ENDS = "</think>"


def scope_of(session: str | None, user: str | None, tenant: str | None = None) -> str:
    """Name who speaks: conversations of different named speakers are never joined.

    Callers that name neither session nor user share one scope; equal beginnings of theirs that got
    equal answers cannot be told apart. A tenant's callers are a world of their own, and so are the
    users of one session: what one of them said can be erased without the others.
    """
    within = "" if tenant is None else f"tenant:{tenant}/"
    if session is not None and user is not None:  # the length tells where the user's name ends
        return f"{within}session of user:{len(user)}:{user}/{session}"
    if session is not None:
        return f"{within}session:{session}"
    return within if user is None else f"{within}user:{user}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """The keys of one request's history.

    Spelling that means the same (null, missing and empty content; parts of one text; white space
    around a text; spaces and order in a tool call's arguments) gives the same keys, and so does an
    answer whose thoughts were left out.
    """

    system: str  # of the system messages that open it
    request: str  # of all of it; equal for another attempt at the same request
    answers: tuple[str, ...]  # of each beginning that ends with an answer, longest first
    before: str | None  # of the request that got the newest of them; None: there is none
    _chain: "_Hash"

    @classmethod
    def of(cls, messages: Sequence[Message], *, scope: str) -> "Keys":
        """Hash a history once.

        Args:
            messages: the request's, from the first to the last.
            scope: who speaks; equal conversations of different speakers are kept apart.
        """
        num_opening = _num_system(messages)
        system, chain = hashlib.sha256(), hashlib.sha256(scope.encode())
        for message in messages[:num_opening]:
            system.update(meaning(message))
        system_key = _hex(system)
        answers: list[str] = []
        asked: _Hash | None = None  # the chain up to the newest answer
        for index, message in enumerate(messages[num_opening:], start=num_opening + 1):
            is_answer = message.get("role") == "assistant" and index < len(messages)
            if is_answer:
                asked = chain.copy()
            chain.update(meaning(message))
            if is_answer:
                answers.append(_hex(chain))
        return cls(
            system=system_key,
            request=_request_key(chain, system_key),
            answers=tuple(answers[::-1]),
            before=None if asked is None else _request_key(asked, system_key),
            _chain=chain,
        )

    def answered_by(self, answer: Message) -> str:
        """Return the key under which a later request finds the call that got this answer."""
        chain = self._chain.copy()
        chain.update(meaning(answer))
        return _hex(chain)


def _request_key(chain: "_Hash", system_key: str) -> str:
    whole = chain.copy()
    whole.update(system_key.encode())
    return _hex(whole)


def meaning(message: Message) -> bytes:
    """Return what a message says, in one spelling."""
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls or () if isinstance(call, dict)]
    named = [[f.get("name"), arguments_of(f)] for f in functions if isinstance(f, dict)]
    said = [message.get("role"), spoken(message), named, message.get("tool_call_id")]
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS)


def spoken(message: Message) -> str:
    """Return a message's text without the thoughts that lead an answer."""
    text = message_text(message)
    if message.get("role") == "assistant":
        text = text.rpartition(THOUGHT_ENDS)[2]
    return text.strip()


def arguments_of(function: dict[str, object]) -> object:
    """Return what a tool call's arguments say; clients often parse and write them again."""
    written = function.get("arguments")
    try:
        return orjson.loads(written) if isinstance(written, str) else written
    except orjson.JSONDecodeError:
        return written


def _num_system(messages: Sequence[Message]) -> int:
    for index, message in enumerate(messages):
        if message.get("role") not in SYSTEM_ROLES:
            return index
    return len(messages)


def _hex(digest: "_Hash") -> str:
    return digest.hexdigest()[:KEY_LENGTH]
