"""What of a conversation says which task it is, without the text that many conversations share.

Harnesses put a long preamble, tool descriptions and worked examples into the user's message; beside
two thousand shared words a task of twenty would not be seen. It does not know what becomes of the
text.
"""

import hashlib
import zlib
from collections import Counter, deque
from collections.abc import Sequence

from memory.types import Message, message_text

WINDOW = 256
"""Conversations of which it is known what they share; the newest of them."""
SHARED_BY = 0.3
"""Part of the conversations from which a passage says nothing of the task. Above what one task type
among several has of the traffic: its template is what tells it from the others."""
SHARED_BY_AT_LEAST = 6
"""Conversations, while only few are known."""
LEAST_CHARACTERS = 1_200
"""Shared text shorter than that stays: it does not swamp the task. The embedder reads about 500
characters, and the longest template of reasoning-gym's families has 1,100."""
_MAX_CHARACTERS = 60_000
"""Read of one text, half from its beginning and half from its end."""
_PASSAGE_WORDS = 16
"""Words of a passage, about; a line ends one too."""


class SharedText:
    """Knows the passages of the newest conversations of one tenant.

    Example:
        ``shared.note(texts); task = shared.without(texts)``
    """

    def __init__(self) -> None:
        self._window: deque[frozenset[int]] = deque()
        self._counts: Counter[int] = Counter()

    def note(self, texts: Sequence[str]) -> None:
        """Take in what one conversation asks."""
        known = frozenset(key for text in texts for key, _ in _passages(text))
        self._window.append(known)
        self._counts.update(known)
        if len(self._window) > WINDOW:
            self._counts.subtract(self._window[0])
            for key in self._window.popleft():
                if not self._counts[key]:
                    del self._counts[key]

    def without(self, texts: Sequence[str]) -> str:
        """Return what a conversation asks, without what many others say as well.

        A text that is nothing but shared is returned as it is: there is nothing else to go by.
        """
        if sum(map(len, texts)) < LEAST_CHARACTERS:
            return "\n".join(texts)
        passages = [passage for text in texts for passage in _passages(text)]
        enough = max(SHARED_BY_AT_LEAST, SHARED_BY * len(self._window))
        shared = [self._counts[key] >= enough for key, _ in passages]
        length = sum(
            len(text) for (_, text), is_shared in zip(passages, shared, strict=True) if is_shared
        )
        own = [text for (_, text), is_shared in zip(passages, shared, strict=True) if not is_shared]
        if length < LEAST_CHARACTERS or not any(any(map(str.isalnum, text)) for text in own):
            return "\n".join(texts)
        return "\n".join(own)


def asked(messages: Sequence[Message], fallback: str) -> list[str]:
    """Return what the user says in a conversation's first request, the newest last.

    Worked examples stand there as user messages too; they are shared, and left out as such.

    Args:
        messages: the first request's messages.
        fallback: the task's text where there are none.
    """
    texts = [message_text(message) for message in messages if message.get("role") == "user"]
    return [text for text in texts if text.strip()] or [fallback]


def text_key(text: str) -> str:
    """Name a text, to see later whether it would be another."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _passages(text: str) -> list[tuple[int, str]]:
    """Cut a text at line ends and, so that the cuts do not depend on what stands before, at words.

    A word ends a passage by its own hash, one in sixteen on average.
    """
    found = []
    for line in _ends_of(text).splitlines():
        words: list[str] = []
        for word in line.split():
            words.append(word)
            if zlib.crc32(word.encode("utf-8", "replace")) % _PASSAGE_WORDS == 0:
                found.append(words)
                words = []
        if words:
            found.append(words)
    joined = [" ".join(words) for words in found]
    return [(zlib.crc32(passage.encode("utf-8", "replace")), passage) for passage in joined]


def _ends_of(text: str) -> str:
    if len(text) <= _MAX_CHARACTERS:
        return text
    half = _MAX_CHARACTERS // 2
    return f"{text[:half]}\n{text[-half:]}"
