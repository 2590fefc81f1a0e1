"""Text to token ids and log-probabilities, by hashes: the same everywhere and for ever.

Token ids lie between 3 and the vocabulary's size, one for each word with the space before it. A
prompt that extends an earlier prompt and its answer extends its token ids exactly.
"""

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

BOS, EOS = 1, 2


def pieces(text: str) -> list[str]:
    """Cut a text into its tokens' texts."""
    return re.findall(r"\s*\S+|\s+$", text)


def tokenize(text: str, vocab_size: int) -> list[int]:
    """Return the token ids of a text."""
    return [3 + zlib.crc32(piece.encode()) % (vocab_size - 3) for piece in pieces(text)]


def prompt_ids(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], vocab_size: int
) -> list[int]:
    """Return the token ids of a conversation that the assistant is to continue."""
    ids: list[int] = []
    if tools:
        ids += [BOS, *tokenize(f"tools\n{json.dumps(tools)}", vocab_size), EOS]
    for message in messages:
        ids += [BOS, *tokenize(f"{message.get('role')}\n", vocab_size)]
        ids += [*tokenize(rendered(message), vocab_size), EOS]
    return [*ids, BOS, *tokenize("assistant\n", vocab_size)]


def rendered(message: Mapping[str, Any]) -> str:
    """Return a message as the chat template writes it: its text, then its tool calls."""
    functions = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    return text_of(message) + "".join(
        f'<tool_call>{{"name": {json.dumps(function.get("name"))}, '
        f'"arguments": {function.get("arguments")}}}</tool_call>'
        for function in functions
    )


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message's text; parts are joined with newlines."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text") or "" for part in content)
    return content or ""


def logprob(model: str, place: int, token: int) -> float:
    """Return a number in [-1.001, -0.001] that depends on all three."""
    return -0.001 - (zlib.crc32(f"{model}|{place}|{token}".encode()) % 1000) / 1000
