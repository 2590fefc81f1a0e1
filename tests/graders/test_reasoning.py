import inspect
import json
import re
import sys
from collections.abc import Mapping

import pytest

from graders.reasoning import REASONING_GYM, REFUSED, generate
from graders.types import Answer
from memory.errors import InvalidRequestError
from memory.types import Grade

ONE_DIGIT = {"min_digits": "1", "max_digits": "1"}


async def grade(text: str, config: Mapping[str, object]) -> Grade:
    message = {"role": "assistant", "content": text}
    return await REASONING_GYM.grade(Answer(messages=(), message=message, config=config))


def test_same_seed_and_settings_give_the_same_entries() -> None:
    first = generate("products", n=5, seed=7, settings=ONE_DIGIT)
    assert first == generate("products", n=5, seed=7, settings=ONE_DIGIT)
    assert first != generate("products", n=5, seed=8, settings=ONE_DIGIT)
    assert all(len(entry["answer"]) <= 2 for entry in first)


def test_questions_differ_and_a_small_family_ends_early() -> None:
    # 0..9 times 0..9: 100 questions exist, and 1,200 draws miss one only with probability 6e-4.
    entries = generate("products", n=120, seed=1, settings=ONE_DIGIT)
    questions = {entry["question"] for entry in entries}
    assert len(questions) == len(entries) == 100


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        ("products", {"allow_negation": "true", "max_digits": 2}),
        ("chain_sum", {"min_terms": "2", "max_terms": "2"}),
        ("letter_counting", {"max_words": "5", "min_words": "3"}),
        ("basic_arithmetic", {"operators": "+,-", "whitespace": "no_space"}),
        ("basic_arithmetic", {"operators": '["+", "-"]'}),
        ("basic_arithmetic", {"operators": ["+", "-"]}),
        ("coin_flip", {}),
        ("word_sorting", {"transformation": "lowercase"}),
        ("time_intervals", {"min_date": "2020-01-01", "max_date": "2021-01-01"}),
    ],
)
async def test_right_answer_scores_one_with_the_stored_entry(
    dataset: str, settings: Mapping[str, object]
) -> None:
    for entry in generate(dataset, n=3, seed=1, settings=settings):
        stored = json.loads(json.dumps({"dataset": dataset, "entry": entry}))
        assert (await grade(f" {entry['answer']}\n", stored)).value == 1.0


async def test_score_is_the_librarys_own() -> None:
    config = {"dataset": "products", "entry": {"question": "?", "answer": "12", "metadata": {}}}
    assert (await grade("12.0", config)).value == 1.0  # tolerated by its decimal scorer
    assert (await grade("It is 12", config)).value == 2 / 8
    wrong = await grade("13", config)
    assert wrong.value == 0.0
    assert "expected '12'" in wrong.explanation


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"dataset": "products"},
        {"dataset": "nonsense", "entry": {"answer": "1"}},
        {"dataset": "products", "entry": {}},  # the scorer raises KeyError
        {"dataset": "number_sorting", "entry": {"answer": "[1]", "metadata": {}}},
    ],
)
async def test_what_the_scorer_cannot_score_has_a_reason(config: Mapping[str, object]) -> None:
    result = await grade("12", config)
    assert result.value is None
    assert result.unscored_reason


@pytest.mark.parametrize(
    ("dataset", "settings", "param", "says"),
    [
        ("product", {}, "from", "did you mean products"),
        ("zzzzzz", {}, "from", "there are ab, acre"),
        ("products", {"min_digit": "1"}, "set.min_digit", "did you mean min_digits"),
        ("products", {"min_digits": "one"}, "set.min_digits", "integer"),
        ("products", {"seed": "3"}, "set.seed", "no setting 'seed'"),
        ("products", {"min_digits": "9"}, "set", "max_digits must be >= min_digits"),
        ("basic_arithmetic", {"operators": "[+"}, "set.operators", "'[+'"),
        ("spell_backward", {"data_file": "../x"}, "set.data_file", "no setting"),
        ("composite", {}, "from", "refused"),
        ("countdown", {}, "from", "refused"),
        ("rearc", {}, "from", "cannot be stored"),
    ],
)
def test_bad_requests_say_what_would_be_right(
    dataset: str, settings: dict[str, str], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        generate(dataset, n=2, seed=1, settings=settings)
    assert caught.value.param == param
    assert says in caught.value.message


async def test_without_the_library_tasks_are_refused_and_grades_have_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(InvalidRequestError, match="not installed"):
        generate("products", n=1, seed=1, settings={})
    result = await grade("12", {"dataset": "products", "entry": {"answer": "12"}})
    assert result.value is None
    assert "not installed" in (result.unscored_reason or "")


def test_every_dataset_whose_module_evaluates_text_is_refused_or_known_to_be_safe() -> None:
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

    # These evaluate what they generate themselves, or parse with a function of their own.
    generating_only = {"basic_arithmetic", "codeio", "propositional_logic"}
    evaluating = {
        name
        for name, (dataset_class, _) in DATASETS.items()
        if re.search(
            r"\b(eval|exec|parse_expr|sympify)\(",
            inspect.getsource(sys.modules[dataset_class.__module__]),
        )
    }
    assert evaluating - generating_only == REFUSED - {"composite"}
