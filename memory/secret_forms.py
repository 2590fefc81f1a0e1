"""How secrets and personal data are written: one pattern a form, each linear in the text.

A run of characters is looked at from one place only, or up to a bound: a text of a megabyte that
only begins like a key a hundred thousand times must not stop the service. It does not know what
becomes of a find.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["keys", "emails", "phones", "cards"]
KINDS: tuple[Kind, ...] = ("keys", "emails", "phones", "cards")
ISSUERS = re.compile(
    r"4\d{12}(\d{3})?|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3[068]\d{12}|35\d{14}"
    r"|6(011|5\d\d)\d{12}"
)
"""Visa, Mastercard (two), American Express, Diners Club, JCB, Discover."""


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
    """Look for what the name says before "key", and tell a value from an expression of a program.

    Without quotes, ``api_key = config2.get_value(name)`` names no key.
    """
    before = match.string[max(0, match.start() - 8) : match.start()].lower()
    if not before.rstrip(" _-").endswith(("api", "access", "secret", "auth", "client")):
        return False
    is_literal = "." not in match["secret"].rstrip(".") and not _opens_bracket(match)
    return match["quote"] is not None or is_literal


def _opens_bracket(match: re.Match[str]) -> bool:
    return match.string[match.end() : match.end() + 1] in {"(", "["}


def _is_sk_key(match: re.Match[str]) -> bool:
    """Look for a run that nobody reads: ``sk-button-primary-2`` is a name."""
    runs = _LONG_RUN.findall(match[0])
    return any(len(run) >= 20 or not run.isalpha() for run in runs)


def _is_card(match: re.Match[str]) -> bool:
    """Check a card's number by its issuer's form and Luhn's sum (ISO/IEC 7812-1)."""
    digits = [character for character in match[0] if character.isdigit()]
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    total: int = sum(map(int, digits[-1::-2])) + sum(doubled)
    return ISSUERS.fullmatch("".join(digits)) is not None and total % 10 == 0


def _is_phone(match: re.Match[str]) -> bool:
    number: str = match.groupdict().get("secret") or match[0]
    return 7 <= sum(map(str.isdigit, number)) <= 15  # E.164: at most 15


def _is_international(match: re.Match[str]) -> bool:
    """Tell a telephone from a positive number among the arguments of a call: ``f(a, +123…)``."""
    before = match.string[max(0, match.start() - 80) : match.start()]
    opening = before.rfind("(")
    in_call = opening > before.rfind(")") and re.match(r"\w", before[:opening][-1:]) is not None
    return _is_phone(match) and not (in_call and before[-1] in "(, ")


_LONG_RUN = re.compile(r"[A-Za-z0-9]{16,}")
_WORD_BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"  # a line break may be written as \n
_RUN_BEFORE = r"(?:(?<![\w-])|(?<=\\[nrt]))"  # so that a run is looked at from one place only
_TOP_LEVEL = (
    r"(?:[a-z]{2}|[A-Z]{2}|[Xx][Nn]--[A-Za-z0-9-]{2,59}|(?i:com|net|org|edu|gov|mil|int|info|biz|name"
    r"|pro|app|dev|cloud|online|site|shop|store|tech|xyz|club|blog|email|mobi|jobs|museum|aero|coop"
    r"|cat|tel|asia|post|agency|company|group|team|work|world|today|life|live|media|network|digital"
    r"|solutions|systems|software|services|support|space|studio|academy|school|university|health"
    r"|bank|law|legal|consulting|berlin|london|paris|amsterdam|hamburg|wien|koeln|cologne|bayern"
    r"|nyc|tokyo|swiss|google|gmbh|ltd|inc|llc|foundation|ngo|church|news|art|page|web|zone|center"
    r"|example|test|invalid|internal|local|localhost))"
)
"""Every country's two letters, and what else mail comes from: ``A@B.transpose`` is a product."""
_NO_SUM_BEFORE = r"(?<![\w.*+/=^×÷\-])(?<![*+/=^×÷\-] )(?<![\d)\]] )"
_NO_SUM_AFTER = r"(?!\w)(?! ?[*+/=^×÷])(?! - )(?!\.\d)"


def _key(pattern: str, *triggers: str, is_one: Callable[[re.Match[str]], bool] = bool) -> Form:
    return Form(
        kind="keys", name="key", pattern=re.compile(pattern), triggers=triggers, is_one=is_one
    )


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
    _key(  # up to its end, or as far as it looks like one
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]++|-(?!----))*+-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        r"|[\sA-Za-z0-9+/=\\]*)",
        "-----BEGIN ",
    ),
    _key(  # a JSON web token
        _RUN_BEFORE + r"eyJ[\w-]{8,}+\.[\w-]{8,}+\.[\w-]{8,}", "eyJ"
    ),
    _key(_RUN_BEFORE + r"sk-[\w-]{16,}", "sk-", is_one=_is_sk_key),
    _key(
        _WORD_BEFORE + r"(?:[spr]k_(?:live|test)_\w{16,}|gh[pousr]_\w{30,}|github_pat_\w{22,}"
        r"|glpat-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{35}"
        r"|hf_[A-Za-z0-9]{30,})",
        *("k_live_", "k_test_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        *("glpat-", "xox", "AKIA", "ASIA", "AIza", "hf_"),
    ),
    _key(
        r"\b[Bb](?:earer|EARER) {1,8}"
        r"(?P<secret>(?=[^\s\d]{0,64}\d)[\w.~+/=-]{8,}|[\w.~+/=-]{24,})",
        *("earer ", "EARER "),
    ),
    Form(  # api_key = "…", x-api-key: …, AWS_SECRET_ACCESS_KEY=…, access_token=…
        kind="keys",
        name="key",
        pattern=re.compile(
            r"(?:[Kk]ey|KEY|[Tt]oken|TOKEN|[Ss]ecret|SECRET)(?:\\?[\"'])?\s{0,8}[:=]\s{0,8}"
            r"(?P<quote>\\?[\"'])?(?P<secret>(?=[^\s\d\"'&]{0,64}\d)[\w.~+/=-]{12,})"
        ),
        triggers=("key", "Key", "KEY", "oken", "OKEN", "ecret", "ECRET"),
        is_one=_is_named_key,
    ),
    _key(
        r"(?<![\w+.-])[A-Za-z][\w+.-]{0,30}://[^\s/:@\"']{0,256}:"
        r"(?P<secret>(?![{<$])[^\s/@\"']{1,256})@",
        "://",
    ),
    _key(
        r"[?&](?:\w{0,40}key|\w{0,40}token|sig|\w{0,40}signature|password)="
        r"(?P<secret>[^&\s\"'#]{8,})",
        *("key=", "token=", "signature=", "sig=", "password="),
    ),
    Form(
        kind="emails",
        name="e-mail",
        triggers=("@",),
        pattern=re.compile(  # git@host is where a repository lies
            r"(?:(?<![\w.+%\\-])|(?<=\\[nrt])|(?<=\\)(?![nrt]))(?!git@)"
            r"[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,6}" + _TOP_LEVEL + r"(?![\w(]|\.\w)"
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
        r"(?<![\w.*+/=^)\]])(?<![\d)\]=<>*/^] )\+(?:\d{10,15}|\d{1,3}(?:[ .-]?\(\d{1,4}\))?"
        r"(?:[ .-]\d{2,8}){1,5})(?!\d)" + _NO_SUM_AFTER,
        "+",
        min_length=8,
        is_one=_is_international,
    ),
    _digits(  # as North America writes it
        "phones",
        _NO_SUM_BEFORE + r"(?:\(\d{3}\) ?\d{3}[.-]\d{4}|\d{3}-\d{3}-\d{4})" + _NO_SUM_AFTER,
        min_length=12,
        is_one=_is_phone,
    ),
    _digits(  # said to be one
        "phones",
        r"\b(?:[Pp]hone|[Tt]el|[Mm]obile|[Ff]ax|[Ww]hats[Aa]pp)\b[^\d\n+]{0,16}"
        r"(?P<secret>\+?\d(?:[ ./()-]?\d){6,14})(?!\d)",
        *("hone", "tel", "Tel", "obile", "fax", "Fax", "hats"),
        min_length=7,
        is_one=_is_phone,
    ),
)
