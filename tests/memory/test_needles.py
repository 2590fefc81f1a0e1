"""Texts that are looked for all at once, against looking for each by itself."""

import random

import orjson
import pytest

from memory.needles import Needles, needles_of, needles_of_json


@pytest.mark.parametrize("seed", range(20))
def test_every_place_is_found_that_a_plain_search_finds(seed):
    rng = random.Random(seed)
    content = bytes(rng.choices(b"abc", k=3_000))
    wanted = {content[at : at + rng.randint(12, 30)] for at in rng.choices(range(2_900), k=20)}
    wanted |= {bytes(rng.choices(b"abc", k=12)) for _ in range(20)}
    found = dict(Needles(wanted).places(content))
    for at in range(len(content)):
        here = [needle for needle in wanted if content.startswith(needle, at)]
        assert found.get(at) == max(here, key=len, default=None)


def test_short_and_empty_contents_hold_nothing():
    needles = Needles([b"a secret text"])
    for content in (b"", b"a", b"a secret tex"):
        assert list(needles.places(content)) == []
    assert list(Needles([]).places(b"a secret text")) == []


def test_names_of_fields_and_of_models_are_not_looked_for():
    arguments = orjson.dumps({"name_of_an_argument": "what it says\nin two lines"}).decode()
    function = {"name": "note", "arguments": arguments}
    request = {
        "model": "denizen-000007",
        "max_completion_tokens": 64,
        "parallel_tool_calls": True,
        "messages": [
            {"role": "user", "content": 'the "words of the user" are here'},
            {
                "role": "assistant",
                "tool_calls": [{"id": "call_5f1c9a0d7e33", "function": function}],
            },
        ],
    }
    found = needles_of_json(orjson.dumps(request).decode())
    assert found == {"words of the user", "what it says", "in two lines"}


def test_needles_hold_nothing_that_json_escapes():
    needles = needles_of('a "quoted part of it" and\nanother line of text\\end')
    assert needles == {"quoted part of it", "another line of text"}
