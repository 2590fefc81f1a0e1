"""Finds secrets and personal data in a text by their form, and puts a mark in their place.

Precise rather than complete: every find keeps an answer from being learned token for token, so that
a long number in a sum must not pass for a telephone. Where a form alone does not tell (a number
without a country code, a word after "password:"), it is left as it is. Knows nothing of records.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from memory.errors import ConfigError

Kind: TypeAlias = Literal["keys", "emails", "phones", "cards"]
KINDS: tuple[Kind, ...] = ("keys", "emails", "phones", "cards")
ISSUERS = re.compile(
    r"4\d{12}(\d{3})?|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[068]\d{12}|35\d{14}"
    r"|6(011|5\d\d)\d{12}"
)
"""Visa, Mastercard (two), American Express, Diners Club, JCB, Discover."""
MIN_KNOWN = 8
"""Characters from which one of the service's own keys is searched for as it stands; "admin" as a
key would otherwise vanish from every text."""


class Redactor(Protocol):
    """What finds secrets and personal data in a text."""

    def may_hold(self, text: str) -> bool:
        """Say, cheaply, whether there may be anything; wrong only on the side of yes."""

    def redact(self, text: str) -> str:
        """Return the text with marks in place of what was found; itself when there is nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """How one thing to be found is written.

    The group ``secret`` of the pattern, or all of it, is what is replaced.
    """

    kind: Kind
    name: str  # as the mark says it
    pattern: re.Pattern[str]
    triggers: tuple[str, ...] = ()  # one of them stands in every text that holds it
    min_length: int = 0  # of the digits that it holds, and the little between them; 0: it has none
    is_one: Callable[[re.Match[str]], bool] = bool  # a last look at what matched


def _is_named_key(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 8) : match.start()].lower()
    return before.rstrip(" _-").endswith(("api", "access", "secret", "auth", "client"))


def _is_card(match: re.Match[str]) -> bool:
    """Check a card's number by its issuer's form and Luhn's sum (ISO/IEC 7812-1)."""
    digits = [character for character in match[0] if character.isdigit()]
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    total: int = sum(map(int, digits[-1::-2])) + sum(doubled)
    return ISSUERS.fullmatch("".join(digits)) is not None and total % 10 == 0


def _is_phone(match: re.Match[str]) -> bool:
    number: str = match.groupdict().get("secret") or match[0]
    return 7 <= sum(map(str.isdigit, number)) <= 15  # E.164: at most 15


_WORD_BEFORE = r"(?<![A-Za-z0-9])"
_NO_SUM_BEFORE = r"(?<![\w.*+/=^×÷\-])(?<![*+/=^×÷\-] )(?<![\d)\]] )"
_NO_SUM_AFTER = r"(?!\w)(?! ?[*+/=^×÷])(?! - )(?!\.\d)"


def _key(pattern: str, *triggers: str, flags: re.RegexFlag = re.NOFLAG) -> Form:
    return Form(kind="keys", name="key", pattern=re.compile(pattern, flags), triggers=triggers)


def _digits(
    name: Kind,
    pattern: str,
    *triggers: str,
    min_length: int,
    is_one: Callable[[re.Match[str]], bool],
) -> Form:
    return Form(
        kind=name,
        name=name.removesuffix("s"),
        pattern=re.compile(pattern),
        triggers=triggers,
        min_length=min_length,
        is_one=is_one,
    )


FORMS: tuple[Form, ...] = (
    _key(
        r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
        r"(?:.*?-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|[\sA-Za-z0-9+/=\\]*)",
        "-----BEGIN ",
        flags=re.DOTALL,
    ),
    _key(_WORD_BEFORE + r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}", "eyJ"),  # a JSON web token
    _key(
        _WORD_BEFORE + r"(?:sk-(?:(?=[\w-]*\d)[\w-]{12,}|[A-Za-z]{20,})"
        r"|[spr]k_(?:live|test)_\w{16,}|gh[pousr]_\w{30,}|github_pat_\w{22,}|glpat-[\w-]{20,}"
        r"|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}|hf_[A-Za-z0-9]{30,})",
        *("sk-", "k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        *("glpat-", "xox", "AKIA", "ASIA", "AIza", "hf_"),
    ),
    _key(
        r"\b[Bb](?:earer|EARER) +(?P<secret>(?=\S*\d)[\w.~+/=-]{8,}|[\w.~+/=-]{24,})",
        *("earer ", "EARER "),
    ),
    Form(  # api_key = "…", x-api-key: …, AWS_SECRET_ACCESS_KEY=…, access_token=…
        kind="keys",
        name="key",
        pattern=re.compile(
            r"(?:[Kk]ey|KEY|[Tt]oken|TOKEN|[Ss]ecret|SECRET)[\"']?\s*[:=]\s*[\"']?"
            r"(?P<secret>(?=[^\s\"'&]*\d)[\w.~+/=-]{12,})"
        ),
        triggers=("key", "Key", "KEY", "oken", "OKEN", "ecret", "ECRET"),
        is_one=_is_named_key,
    ),
    _key(r"[A-Za-z][\w+.-]*://[^\s/:@\"']*:(?P<secret>[^\s/@\"']+)@", "://"),
    _key(
        r"[?&](?:\w*key|\w*token|sig|\w*signature|password)=(?P<secret>[^&\s\"'#]{8,})",
        *("key=", "token=", "signature=", "sig=", "password="),
    ),
    Form(
        kind="emails",
        name="e-mail",
        triggers=("@",),
        pattern=re.compile(  # git@host is where a repository lies
            r"(?<![\w.+%-])(?!git@)[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}(?!\w)"
        ),
    ),
    _digits(
        "cards",
        _NO_SUM_BEFORE + r"(?:\d{4}([ -]?)\d{4}\1\d{4}\1\d{1,4}|\d{4}([ -]?)\d{6}\2\d{4,5})"
        r"(?!\d)" + _NO_SUM_AFTER,
        min_length=13,
        is_one=_is_card,
    ),
    _digits(  # with a country code
        "phones",
        r"(?<![\w.*+/=^)\]])(?<![\d)\]] )\+(?:\d{10,15}|\d{1,3}(?:[ .-]?\(\d{1,4}\))?"
        r"(?:[ .-]\d{2,8}){1,5})(?!\d)" + _NO_SUM_AFTER,
        "+",
        min_length=8,
        is_one=_is_phone,
    ),
    _digits(  # as North America writes it
        "phones",
        _NO_SUM_BEFORE + r"(?:\(\d{3}\) ?\d{3}[.-]\d{4}|\d{3}([.-])\d{3}\1\d{4})" + _NO_SUM_AFTER,
        min_length=12,
        is_one=_is_phone,
    ),
    _digits(  # said to be one
        "phones",
        r"\b(?:[Pp]hone|[Tt]el|[Mm]obile|[Ff]ax|[Ww]hats[Aa]pp)\b[^\d\n+]{0,16}"
        r"(?P<secret>\d(?:[ ./()-]?\d){6,14})(?!\d)",
        *("hone", "tel", "Tel", "obile", "fax", "Fax", "hats"),
        min_length=7,
        is_one=_is_phone,
    ),
)
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
                'privacy.engine is "presidio", but presidio-analyzer is not installed: install it'
                ' beside Denizen, or set privacy.engine = "patterns"'
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
        for one in sorted(found, key=lambda result: int(result.start), reverse=True):
            text = f"{text[: one.start]}[{one.entity_type.lower()}]{text[one.end :]}"
        return self._keys.redact(text)
