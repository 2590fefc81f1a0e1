from typing import Any

import pytest

from graders.catalog import require_gradable
from graders.instructions import INSTRUCTIONS, score_instructions
from graders.languages import language_of
from graders.types import Answer
from memory.errors import InvalidRequestError

GERMAN = "Das ist ein kurzer Text, der nicht auf Englisch ist."
ENGLISH = "This is a short text that is not in German."


def answer_of(text: str, **config: Any) -> Answer:
    message = {"role": "assistant", "content": text}
    return Answer(messages=(), message=message, config=config)


@pytest.mark.parametrize(
    ("text", "config", "value"),
    [
        ("one two three", {"max_words": 3}, 1.0),
        ("one two three four", {"max_words": 3}, 0.0),
        ("one two", {"min_words": 2}, 1.0),
        ("one", {"min_words": 2}, 0.0),
        ("  abc  ", {"max_characters": 3}, 1.0),
        ("abcd", {"max_characters": 3}, 0.0),
        ("abc", {"min_characters": 4}, 0.0),
        ("all small 1 !", {"case": "lower"}, 1.0),
        ("Not all", {"case": "lower"}, 0.0),
        ("ALL CAPS ẞ", {"case": "upper"}, 1.0),
        ("ALL Caps", {"case": "upper"}, 0.0),
        ("a Red fox", {"required": ["red  fox"]}, 1.0),
        ("bored foxes", {"required": ["red", "fox"]}, 0.0),
        ("nothing", {"forbidden": ["thing"]}, 1.0),
        ("one thing", {"forbidden": ["Thing"]}, 0.0),
        ('{"a": 1}', {"format": "json"}, 1.0),
        ('```json\n{"a": 1}\n```', {"format": "json"}, 0.0),
        ("- a\n- b", {"format": "bullets"}, 1.0),
        ("Sure:\n- a\n- b", {"format": "bullets"}, 0.0),
        ("- a", {"format": "bullets"}, 0.0),
        ("1. a\n2. b\n   more of b", {"format": "numbered"}, 1.0),
        ("a\nb", {"format": "numbered"}, 0.0),
        ("one line", {"format": "one_line"}, 1.0),
        ("two\nlines", {"format": "one_line"}, 0.0),
        ("plain 2 * 3", {"format": "no_markdown"}, 1.0),
        ("**bold**", {"format": "no_markdown"}, 0.0),
        ("# Title", {"format": "no_markdown"}, 0.0),
        ("Dear all, …", {"starts_with": "Dear"}, 1.0),
        ("Hi all", {"starts_with": "Dear"}, 0.0),
        ("… regards", {"ends_with": "regards"}, 1.0),
        ("regards!", {"ends_with": "regards"}, 0.0),
        (GERMAN, {"language": "de"}, 1.0),
        (ENGLISH, {"language": "de"}, 0.0),
        ("今天天气很好", {"language": "zh"}, 1.0),
        ("", {"max_words": 3}, 0.0),
        ("", {"language": "de"}, 0.0),
        ("one two THREE", {"max_words": 3, "case": "lower"}, 0.5),
        ("one two", {"max_words": 3, "case": "lower", "forbidden": ["two", "six"]}, 0.75),
    ],
)
def test_the_share_of_kept_constraints_is_the_value(text, config, value) -> None:
    score = score_instructions(answer_of(text, **config))
    assert score.value == value, score.explanation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ENGLISH, "en"),
        (GERMAN, "de"),
        ("Le chat est sur la table et il ne dort pas.", "fr"),
        ("El gato está en la mesa y no duerme.", "es"),
        ("Il gatto è sul tavolo e non dorme, ma anche la notte.", "it"),
        ("O gato não está na mesa, mas ele foi ao jardim.", "pt"),
        ("De kat zit op de tafel en het is niet donker.", "nl"),
        ("これは短い文章です", "ja"),
        ("이것은 짧은 글입니다", "ko"),
        ("Это короткий текст", "ru"),
        ("12 + 3", None),
        ("Paris", None),
        ("ok", None),
    ],
)
def test_a_language_is_told_or_not(text: str, expected: str | None) -> None:
    assert language_of(text) == expected


async def test_a_language_that_cannot_be_told_leaves_it_unscored() -> None:
    found = await INSTRUCTIONS.grade(answer_of("Paris", language="fr"))
    assert found.unscored_reason == "cannot tell the language of 'Paris'"


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_words": -1},
        {"min_words": 5, "max_words": 3},
        {"language": "klingon"},
        {"format": "xml"},
        {"required": [""]},
        {"max_word": 3},
    ],
)
async def test_bad_config_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        require_gradable("instructions", reference=None, config=config)
    assert (await INSTRUCTIONS.grade(answer_of("x", **config))).value is None
