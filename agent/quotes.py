"""Which recorded texts a request quotes.

A title, a summary or a sub-agent is asked for in a conversation of its own, which repeats words of
the one that it serves. A text is found again wherever it stands whole, word for word, inside a
message: by its first words, then by the hash of all of them. The index holds the newest calls in
memory and reads or writes nothing; what it holds of a call is stored beside the call.
"""

import hashlib
import re
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from agent.sessions import arguments_of, meaning, spoken
from memory.types import Edge, Message, message_text

WORD = re.compile(r"[\u3040-\u9fff\uac00-\ud7af]|[^\W\u3040-\u9fff\uac00-\ud7af]+")
"""Runs of letters and digits; where a script has no spaces, single characters."""
PARAGRAPH_END = re.compile(r"\n\s*\n|</?\w+>")
ANCHOR_WORDS = 4
MIN_WORDS = 5  # shorter texts ("go on", "yes, please do it") are said in every conversation
MIN_PARAGRAPH_WORDS = 12
MAX_WORDS = 1_000  # of one text, and of one message that is searched
MAX_SEARCHED = 6_000  # words of one request
MAX_CHARACTERS = 20_000  # of one message
MAX_TEXTS = 12  # of one call
MAX_CALLS = 5_000
MAX_SOURCES = 64  # of one text; what more say says nothing of the conversation


class QuoteKind(StrEnum):
    """What a quoted text was in its conversation."""

    USER = "user"
    ANSWER = "answer"
    ARGUMENT = "argument"  # a text inside the arguments of a tool call
    MESSAGE = "message"  # an answer as a message of a history, tool calls included


@dataclass(frozen=True, slots=True)
class Quotable:
    """A text that may be quoted: its first words, its length and its hash; never the text."""

    kind: QuoteKind
    anchor: str
    num_words: int
    digest: str


@dataclass(kw_only=True, slots=True)
class Source:
    """A call whose texts may be quoted."""

    episode_id: str
    scope: str
    system: str  # the key of its system prompt
    edge: Edge | None
    call_id: str | None = None  # None: it is not recorded yet
    noted_at: float = field(default_factory=time.time)
    num_quoted: int = 0


@dataclass(frozen=True, slots=True)
class Hit:
    """A text of a source found in a request."""

    source: Source
    kind: QuoteKind
    digest: str
    num_words: int


def asked_texts(messages: Sequence[Message]) -> list[Quotable]:
    """Return what opens a conversation: the user's messages, where nothing was answered yet."""
    if any(message.get("role") == "assistant" for message in messages):
        return []
    return [
        text
        for message in messages
        if message.get("role") == "user"
        for text in _quotable(QuoteKind.USER, message_text(message))
    ][-MAX_TEXTS:]


def answered_texts(message: Message) -> list[Quotable]:
    """Return what may be quoted of an answer: all of it, long paragraphs, and tools' arguments."""
    found = [_as_message(message)]
    whole = spoken(message)
    parts = [part for part in PARAGRAPH_END.split(whole) if part != whole]
    found += _quotable(QuoteKind.ANSWER, whole)
    for part in parts:
        found += _quotable(QuoteKind.ANSWER, part, at_least=MIN_PARAGRAPH_WORDS)
    for call in message.get("tool_calls") or ():
        for leaf in _leaves(arguments_of(call["function"])):
            found += _quotable(QuoteKind.ARGUMENT, leaf)
    return list(dict.fromkeys(found))[:MAX_TEXTS]


def _as_message(message: Message) -> Quotable:
    said = meaning(message)
    digest = hashlib.blake2b(said, digest_size=12).hexdigest()
    return Quotable(QuoteKind.MESSAGE, "", len(words_of(said.decode())), digest)


def _quotable(kind: QuoteKind, text: str, *, at_least: int = MIN_WORDS) -> Iterator[Quotable]:
    words = words_of(text)
    if len(words) >= at_least:
        yield Quotable(kind, " ".join(words[:ANCHOR_WORDS]), len(words), _digest(words))


def _leaves(value: Any) -> Iterator[str]:
    """Yield the texts inside a tool call's arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)


@lru_cache(maxsize=512)  # a system prompt comes with every request
def words_of(text: str) -> tuple[str, ...]:
    """Return the first words of a text, without case; a quoted line break counts as a space."""
    return tuple(WORD.findall(text[:MAX_CHARACTERS].replace("\\n", " ").lower())[:MAX_WORDS])


def _digest(words: Sequence[str]) -> str:
    return hashlib.blake2b(" ".join(words).encode(), digest_size=12).hexdigest()


class QuoteIndex:
    """The quotable texts of the newest calls."""

    def __init__(self, max_calls: int = MAX_CALLS) -> None:
        self._max_calls = max_calls
        self._lengths: dict[str, Counter[int]] = {}  # anchor -> lengths of the texts it begins
        self._sources: dict[str, deque[tuple[Source, QuoteKind]]] = {}  # digest -> who said it
        self._order: deque[tuple[Source, tuple[Quotable, ...]]] = deque()

    def add(self, source: Source, texts: Iterable[Quotable]) -> None:
        """Make the texts of a call findable; the oldest call is forgotten where there are many."""
        texts = tuple(texts)
        self._order.append((source, texts))
        for text in texts:
            sources = self._sources.setdefault(text.digest, deque(maxlen=MAX_SOURCES))
            sources.append((source, text.kind))
            if text.anchor:
                self._lengths.setdefault(text.anchor, Counter())[text.num_words] += 1
        if len(self._order) > self._max_calls:
            self._forget(*self._order.popleft())

    def forget(self, episode_ids: Collection[str]) -> None:
        """Forget what was said in these episodes."""
        left = [one for one in self._order if one[0].episode_id not in episode_ids]
        if len(left) < len(self._order):
            self._lengths.clear()
            self._sources.clear()
            self._order.clear()
            for source, texts in left:
                self.add(source, texts)

    def _forget(self, source: Source, texts: Iterable[Quotable]) -> None:
        for text in texts:
            sources = self._sources.get(text.digest)
            if sources and sources[0][0] is source:
                sources.popleft()
            if not sources:
                self._sources.pop(text.digest, None)
            if text.anchor:
                lengths = self._lengths[text.anchor]
                lengths[text.num_words] -= 1
                if not +lengths:
                    del self._lengths[text.anchor]

    def find(self, messages: Iterable[Message], *, scope: str) -> list[Hit]:
        """Return the texts of this speaker's calls that stand inside the messages.

        A message that only repeats how a conversation began quotes nothing: two people may well
        begin with the same words.
        """
        hits: list[Hit] = []
        num_left = MAX_SEARCHED
        for message in messages:
            words = words_of(message_text(message))[:num_left]
            num_left -= len(words)
            for digest, num_words in self._digests_in(words):
                is_whole = num_words == len(words)
                hits += [
                    Hit(source, kind, digest, num_words)
                    for source, kind in self._sources.get(digest, ())
                    if source.scope == scope and not (is_whole and kind is QuoteKind.USER)
                ]
        return hits

    def find_answers(self, messages: Iterable[Message], *, scope: str) -> list[Hit]:
        """Return the recorded answers that are messages of a history."""
        said = [_as_message(m) for m in messages if m.get("role") == "assistant"]
        return [
            Hit(source, kind, one.digest, one.num_words)
            for one in dict.fromkeys(said)
            for source, kind in self._sources.get(one.digest, ())
            if source.scope == scope
        ]

    def _digests_in(self, words: Sequence[str]) -> Iterator[tuple[str, int]]:
        """Yield the hashes of the spans of words that may be a recorded text."""
        anchors = map(" ".join, zip(*(words[k:] for k in range(ANCHOR_WORDS)), strict=False))
        for start, anchor in enumerate(anchors):
            for num_words in self._lengths.get(anchor, ()):
                end = start + num_words
                if end <= len(words):
                    yield _digest(words[start:end]), num_words
