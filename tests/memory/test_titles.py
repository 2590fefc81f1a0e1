import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.titles import key_terms, title_from, title_of


@pytest.mark.parametrize(
    ("texts", "title"),
    [
        (['How many times does the letter "e" appear in the text: "a b"?'], "letter appear text"),
        (["12 * 4\n = ?"], "12 * 4 = ?"),
        (["1" * 50], "1" * 40),
        (["", "?"], "unnamed"),
        ([], "unnamed"),
        (["Übersetze bitte Wörter"], "übersetze bitte wörter"),
        # Only what at least half of the texts share.
        (["sort pears", "sort apples", "sort plums"], "sort"),
    ],
)
def test_title_is_a_few_telling_words(texts: list[str], title: str) -> None:
    assert title_of(texts) == title


def test_what_all_classes_say_names_none_of_them() -> None:
    terms = key_terms(
        {
            1: ["sort numbers ascending", "sort numbers ascending quickly"],
            2: ["sort words ascending", "sort words ascending slowly"],
        }
    )
    assert terms[1][0] == "numbers"
    assert terms[2][0] == "words"


def test_weight_of_a_term_is_its_share_times_how_rare_it_is() -> None:
    # "gcd": share 1 in class 1 only, log(1 + 2/1) = 1.10; "find": 1 in both, log(1 + 2/2) = 0.69;
    # "lcm" in half of class 2's texts: 0.5 * log(1 + 2/0.5) = 0.80.
    terms = key_terms({1: ["gcd pair"] * 2, 2: ["pair lcm"] * 2 + ["pair"] * 2})
    assert terms[1] == ["gcd", "pair"]
    assert terms[2] == ["lcm", "pair"]


def test_material_of_one_text_is_no_key_term() -> None:
    assert key_terms({1: ["spell turnbout", "spell maple"]})[1] == ["spell"]
    assert key_terms({1: ["spell turnbout"]})[1] == ["spell", "turnbout"]


def test_title_says_the_terms_as_a_text_says_them() -> None:
    texts = ["the greatest common divisor", "divisor"]
    assert title_from(["divisor", "greatest", "common"], texts) == "greatest common divisor"
    assert title_from([], ["3 * 4"]) == "3 * 4"
    assert title_from([], []) == "unnamed"


@given(st.dictionaries(st.integers(), st.lists(st.text(), max_size=4), max_size=4))
def test_any_texts_have_terms_and_a_title(texts_by_class: dict[int, list[str]]) -> None:
    terms = key_terms(texts_by_class)
    assert terms.keys() == texts_by_class.keys()
    for name, texts in texts_by_class.items():
        assert len(terms[name]) <= 8
        assert title_from(terms[name], texts)
