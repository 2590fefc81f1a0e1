"""Names task types: a title and key terms from the texts themselves.

Key terms by class-based TF-IDF (Grootendorst, arXiv:2203.05794): a term counts for a class by how
many of the class's texts have it, and the less the more texts of all classes have it. Pure
functions; they do not know where the texts come from.
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Class = TypeVar("Class", bound=Hashable)

_TITLE_WORDS = 4
_TITLE_CHARACTERS = 40
_READ_CHARACTERS = 2_000
"""Of a text, as much as says what it is about."""
# Words of instructions and of English grammar: they say how to answer, not what the task is about.
_COMMON_WORDS = frozenset(
    re.findall(
        r"\w+",
        """a about above all an and answer any are as at be below by can do does each few final find
        following for form from give given have how if in instruction into is it its many me my no
        not of on one only or other out please problem provide question respond result return should
        solve state task tell than that the their then there these they this those times to use
        using was we what when where which who why will with would write you your""",
    )
)


def title_of(texts: Sequence[str]) -> str:
    """Name a skill by the first few telling words that at least half of its texts share.

    ``["Solve the following multiplication: 3 * 4. Give only the result."]`` is "multiplication".
    What stands in quotes is one task's material, not its kind. Texts without a telling word are
    named by the beginning of the first.
    """
    words_of = [_telling_words(text) for text in texts]
    telling = [
        word
        for word in dict.fromkeys(word for words in words_of for word in words)
        if 2 * sum(word in words for words in words_of) >= len(texts)
    ]
    beginning = " ".join("".join(texts[:1]).split())[:_TITLE_CHARACTERS]
    return " ".join(telling[:_TITLE_WORDS]) or beginning or "unnamed"


def title_from(terms: Sequence[str], texts: Sequence[str]) -> str:
    """Name a skill by its foremost key terms, in the order in which one of its texts says them.

    Args:
        terms: the skill's key terms, the most telling first.
        texts: some of the skill's texts; they name it where it has no key terms.
    """
    chosen = list(terms[:_TITLE_WORDS])
    said = max(texts, key=lambda text: len({*chosen} & {*_telling_words(text)}), default="")
    words = _telling_words(said)
    in_order = sorted(chosen, key=lambda term: words.index(term) if term in words else len(words))
    return " ".join(in_order) or title_of(texts)


def key_terms(
    texts_by_class: Mapping[Class, Sequence[str]], *, limit: int = 8
) -> dict[Class, list[str]]:
    """Return each class's most telling words, the most telling first.

    The weight of term t in class c is ``share(t, c) * log(1 + C / sum over classes of share(t))``
    with ``share`` the part of the class's texts that have t, and C the number of classes. (The
    paper counts occurrences; by counting texts, one long text cannot name its class.) A term that
    only one of a class's several texts has is that text's material.
    """
    shares: dict[Class, dict[str, float]] = {}
    totals: Counter[str] = Counter()
    for name, texts in texts_by_class.items():
        counts = Counter(word for text in texts for word in set(_telling_words(text)))
        least = 2 if len(texts) > 1 else 1
        shares[name] = {w: n / len(texts) for w, n in counts.items() if n >= least}
        totals.update(shares[name])
    num_classes = len(texts_by_class)
    weights = {
        name: {w: s * math.log1p(num_classes / totals[w]) for w, s in of_class.items()}
        for name, of_class in shares.items()
    }
    return {
        name: sorted(of_class, key=lambda word: (-of_class[word], word))[:limit]
        for name, of_class in weights.items()
    }


def _telling_words(text: str) -> list[str]:
    unquoted = re.sub(r'"[^"]*"', " ", text[:_READ_CHARACTERS].lower())
    return [word for word in re.findall(r"[^\W\d_]{3,}", unquoted) if word not in _COMMON_WORDS]
