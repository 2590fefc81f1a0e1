"""Which language a text is written in, by its script and its commonest words.

Good enough to tell whether an answer keeps to a language that was asked for; a sentence is needed.
It knows the languages below and no other.
"""

import re
import unicodedata
from collections import Counter

SCRIPTS = {
    "zh": ("CJK UNIFIED",),
    "ja": ("HIRAGANA", "KATAKANA"),
    "ko": ("HANGUL",),
    "ru": ("CYRILLIC",),
    "ar": ("ARABIC",),
    "el": ("GREEK",),
    "he": ("HEBREW",),
    "hi": ("DEVANAGARI",),
    "th": ("THAI",),
}
WORDS = {
    "en": "the of and to in is that it for was on are as with be this have from or by not you at "
    "but what which an can your will they",
    "de": "der die das und ist in zu den nicht von mit sich des auf für im dem ein eine als auch "
    "es an werden aus er hat dass sie nach wird bei einer um",
    "fr": "le la les de des et est un une en du que dans qui pour pas au sur il ce plus par ne se "
    "son avec sont vous elle cette nous",
    "es": "el la los las de que y en un una es por con para del se no su al lo como más pero sus "
    "este está entre cuando muy",
    "it": "il la di che e un una è per in non sono con del della si da al le dei come più ma anche "
    "gli alla questo nel",
    "pt": "o a os as de que e do da em um uma para com não é por se no na mais dos como mas foi ao "
    "ele das tem seu ou",
    "nl": "de het een en van is dat op te in niet zijn voor met die aan er om als bij ook maar dan "
    "naar deze wordt door",
}
KNOWN = frozenset({*SCRIPTS, *WORDS})
_COMMON = {language: frozenset(words.split()) for language, words in WORDS.items()}
_LEAST_LETTERS, _LEAST_WORDS, _LEAST_COMMON = 4, 4, 2


def language_of(text: str) -> str | None:
    """Return the language's code, such as "de"; None where the text does not tell."""
    letters = [letter for letter in text if letter.isalpha()]
    if len(letters) < _LEAST_LETTERS:
        return None
    counts: Counter[str] = Counter()
    for letter in letters:
        name = unicodedata.name(letter, "")
        counts[next((code for code, heads in SCRIPTS.items() if name.startswith(heads)), "")] += 1
    if counts["ja"] > 0.1 * len(letters):
        return "ja"  # it is written with Chinese characters as well
    script, num = counts.most_common(1)[0]
    if script:
        return script if num > 0.5 * len(letters) else None
    return _by_words(re.findall(r"[^\W\d_]+", text.casefold()))


def _by_words(words: list[str]) -> str | None:
    if len(words) < _LEAST_WORDS:
        return None
    scores = {code: sum(word in common for word in words) for code, common in _COMMON.items()}
    (best, num), (_, second) = Counter(scores).most_common(2)
    return best if num >= _LEAST_COMMON and num > second else None
