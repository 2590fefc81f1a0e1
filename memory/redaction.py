"""Finds secrets and personal data in a text by their form, and puts a mark in their place.

Precise rather than complete: every find keeps an answer from being learned token for token, so that
a long number in a sum must not pass for a telephone. Where a form alone does not tell (a number
without a country code, a word after "password:"), it is left as it is. Knows nothing of records.
"""

import hashlib
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from memory.errors import ConfigError
from memory.secret_forms import FORMS, KINDS, Form, Kind

MIN_KNOWN = 8
"""Characters from which one of the service's own keys is searched for as it stands; "admin" as a
key would otherwise vanish from every text."""
MARK = re.compile(r"\[(key|e-mail|phone|card) [0-9a-f]{6}\]")
"""What stands in the place of a find."""


class Redactor(Protocol):
    """What finds secrets and personal data in a text."""

    def may_hold(self, text: str) -> bool:
        """Say, cheaply, whether there may be anything; wrong only on the side of yes."""

    def redact(self, text: str) -> str:
        """Return the text with marks in place of what was found; itself when there is nothing."""


_MANY_DIGITS = re.compile(r"[0-9][0-9 ./()-]{5,}[0-9]")
_LABEL_ROOM, _SUM_ROOM = 28, 4  # characters before and after digits that a pattern looks at


class PatternRedactor:
    """Finds what has a form of its own.

    A mark names the kind, and tells two different values apart: ``[e-mail 5c0f9a]``. Equal values
    get equal marks as long as the process lives, so that an answer can still be compared with a
    reference; the marks come from a random key that is kept nowhere.

    Example:
        ``PatternRedactor().redact("mail bob@example.com")`` is ``"mail [e-mail 5c0f9a]"``.

    Args:
        kinds: what to look for.
        known: keys of the service itself, which are found as they stand.
    """

    def __init__(self, kinds: Iterable[Kind] = KINDS, known: Iterable[str] = ()) -> None:
        wanted = set(kinds)
        self._forms = [form for form in FORMS if form.kind in wanted]
        worded = [form for form in self._forms if not form.min_length]
        self._triggers = _by_rare_character({one for form in worded for one in form.triggers})
        self._needs_digits = len(worded) < len(self._forms)
        own = {one for one in known if len(one) >= MIN_KNOWN}
        self._known: Sequence[str] = sorted(own, key=len, reverse=True)
        self._mark_key = secrets.token_bytes(16)

    def may_hold(self, text: str) -> bool:
        """Say, cheaply, whether there may be anything; wrong only on the side of yes."""
        for rare, triggers in self._triggers:
            if rare in text and any(one in text for one in triggers):
                return True
        if any(one in text for one in self._known):
            return True
        return self._needs_digits and _MANY_DIGITS.search(text) is not None

    def redact(self, text: str) -> str:
        """Return the text with marks in place of what was found; itself when there is nothing."""
        for key in self._known:
            if key in text:
                text = text.replace(key, self._mark("key", key))
        for form in self._forms:
            if not form.triggers or any(one in text for one in form.triggers):
                text = self._without(form, text)
        return text

    def _without(self, form: Form, text: str) -> str:
        pieces: list[str] = []
        done = 0
        for match in _found(form, text):
            if match.start() >= done:
                pieces += [text[done : match.start()], self._replaced(form, match)]
                done = match.end()
        return "".join([*pieces, text[done:]]) if pieces else text

    def _replaced(self, form: Form, match: re.Match[str]) -> str:
        whole = match[0]
        secret = match.groupdict().get("secret") or whole
        if not form.is_one(match):
            return whole
        start = whole.rindex(secret)
        return whole[:start] + self._mark(form.name, secret) + whole[start + len(secret) :]

    def _mark(self, name: str, secret: str) -> str:
        digest = hashlib.blake2b(
            secret.encode("utf-8", "replace"), key=self._mark_key, digest_size=3
        )
        return f"[{name} {digest.hexdigest()}]"


def _by_rare_character(triggers: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Group triggers by a character that most prose does not have: to look for one costs little."""
    groups: dict[str, list[str]] = {}
    for trigger in sorted(triggers):
        rare = next((character for character in "@_=/JKEAx-" if character in trigger), "")
        groups.setdefault(rare, []).append(trigger)
    return list(groups.items())


def _found(form: Form, text: str) -> Iterator[re.Match[str]]:
    """Yield where a form may stand; for digits only near many of them, as its pattern is slow."""
    if not form.min_length:
        yield from form.pattern.finditer(text)
        return
    for run in _MANY_DIGITS.finditer(text):
        if run.end() - run.start() >= form.min_length:
            start, end = max(0, run.start() - _LABEL_ROOM), run.end() + _SUM_ROOM
            yield from form.pattern.finditer(text, start, end)


PRESIDIO_ENTITIES: dict[Kind, tuple[str, ...]] = {
    "emails": ("EMAIL_ADDRESS",),
    "phones": ("PHONE_NUMBER",),
    "cards": ("CREDIT_CARD",),
}
PRESIDIO_SCORE = (
    0.5  # presidio's own default answers with telephones of score 0.4 in any long number
)


class PresidioRedactor:
    """Microsoft's presidio-analyzer for personal data, and the patterns for keys.

    Raises:
        ConfigError: the package is not installed.
    """

    def __init__(self, kinds: Iterable[Kind] = KINDS, known: Iterable[str] = ()) -> None:
        try:
            from presidio_analyzer import AnalyzerEngine  # type: ignore[import-not-found]
        except ImportError as error:
            raise ConfigError(
                'privacy.engine is "presidio", but presidio-analyzer is not installed: install'
                ' denizen[presidio], or set privacy.engine = "patterns"'
            ) from error
        wanted = set(kinds)
        keys: list[Kind] = [kind for kind in KINDS if kind == "keys" and kind in wanted]
        self._keys = PatternRedactor(keys, known)
        self._entities = [name for kind in wanted for name in PRESIDIO_ENTITIES.get(kind, ())]
        self._analyzer = AnalyzerEngine()

    def may_hold(self, text: str) -> bool:
        """Say yes: only the analysis knows."""
        return bool(text)

    def redact(self, text: str) -> str:
        """Return the text with marks in place of what was found."""
        found = self._analyzer.analyze(
            text, language="en", entities=self._entities, score_threshold=PRESIDIO_SCORE
        )
        spans = [(int(one.start), int(one.end), one.entity_type, one.score) for one in found]
        for start, end, name in reversed(_apart(spans)):
            text = f"{text[:start]}[{name.lower()}]{text[end:]}"
        return self._keys.redact(text)


def _apart(spans: Iterable[tuple[int, int, str, float]]) -> list[tuple[int, int, str]]:
    """Return finds that do not overlap, in order: one for all that share a character.

    It is named after the surest of them, of two as sure the longest.

    Args:
        spans: start, end (exclusive), kind and score of each.
    """
    apart: list[list[tuple[int, int, str, float]]] = []
    reach = -1
    for span in sorted(spans):
        if span[0] < reach:
            apart[-1].append(span)
        else:
            apart.append([span])
        reach = max(reach, span[1])
    return [
        (
            together[0][0],
            max(end for _, end, _, _ in together),
            max(together, key=lambda one: (one[3], one[1] - one[0]))[2],
        )
        for together in apart
    ]
