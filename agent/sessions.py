"""Which conversation a request continues.

A conversation is recognised by a hash chain: the key of an answered call covers its messages and
its answer, so a later request that begins with exactly these continues it. It does not read or
write anything.
"""

import hashlib
from collections.abc import Sequence

import orjson

from memory.types import Message, message_text


def chain_key(messages: Sequence[Message], *, scope: str) -> str:
    """Return the key of a conversation up to here.

    Spelling that means the same (null, missing and empty content; parts of one text) gives the same
    key.

    Args:
        messages: from the first to the answer that ends the conversation so far.
        scope: who speaks; equal conversations of different speakers are kept apart.
    """
    digest = hashlib.sha256(scope.encode())
    for message in messages:
        digest.update(orjson.dumps(_meaning(message)))
    return digest.hexdigest()[:32]


def earlier_keys(messages: Sequence[Message], *, scope: str) -> list[str]:
    """Return the keys under which the call that is continued may be stored, longest first."""
    ends = [i + 1 for i, message in enumerate(messages[:-1]) if message.get("role") == "assistant"]
    return [chain_key(messages[:end], scope=scope) for end in reversed(ends)]


def _meaning(message: Message) -> list[object]:
    calls = message.get("tool_calls") or []
    functions = [call.get("function", {}) for call in calls if isinstance(call, dict)]
    named = [[function.get("name"), function.get("arguments")] for function in functions]
    return [message.get("role"), message_text(message), named, message.get("tool_call_id")]
