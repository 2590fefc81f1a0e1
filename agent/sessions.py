"""Which conversation a request continues.

A conversation is recognised by a hash chain: the key of an answered call covers its messages and
its answer, so a later request that begins with exactly these continues it. It does not read or
write anything.
"""

import hashlib
from collections.abc import Sequence

import orjson

from memory.types import Message, message_text


def scope_of(session: str | None, user: str | None) -> str:
    """Name who speaks: conversations of different named speakers are never joined.

    Callers that name neither session nor user share one scope; equal beginnings of theirs that got
    equal answers cannot be told apart.
    """
    if session is not None:
        return f"session:{session}"
    return "" if user is None else f"user:{user}"


KEY_LENGTH = 32  # hexadecimal digits: 128 bits


def chain_key(messages: Sequence[Message], *, scope: str) -> str:
    """Return the key of a conversation up to here.

    Spelling that means the same (null, missing and empty content; parts of one text; spaces and
    order in a tool call's arguments) gives the same key.

    Args:
        messages: from the first to the answer that ends the conversation so far.
        scope: who speaks; equal conversations of different speakers are kept apart.
    """
    digest = hashlib.sha256(scope.encode())
    for message in messages:
        digest.update(orjson.dumps(_meaning(message), option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()[:KEY_LENGTH]


def earlier_keys(messages: Sequence[Message], *, scope: str) -> list[str]:
    """Return the keys under which the call that is continued may be stored, longest first."""
    digest, keys = hashlib.sha256(scope.encode()), []
    for message in messages[:-1]:
        digest.update(orjson.dumps(_meaning(message), option=orjson.OPT_SORT_KEYS))
        if message.get("role") == "assistant":
            keys.append(digest.hexdigest()[:KEY_LENGTH])
    return keys[::-1]


def _meaning(message: Message) -> list[object]:
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls or () if isinstance(call, dict)]
    named = [[f.get("name"), _arguments(f)] for f in functions if isinstance(f, dict)]
    return [message.get("role"), message_text(message), named, message.get("tool_call_id")]


def _arguments(function: dict[str, object]) -> object:
    """Return what a tool call's arguments say; clients often parse and write them again."""
    written = function.get("arguments")
    try:
        return orjson.loads(written) if isinstance(written, str) else written
    except orjson.JSONDecodeError:
        return written
