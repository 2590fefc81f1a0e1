import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.task_texts import LEAST_CHARACTERS, SHARED_BY_AT_LEAST, WINDOW, SharedText, asked
from memory.types import Message

WORDS = "you are the careful assistant of a harbour and know its rules number"
PREAMBLE = "\n".join(f"{WORDS} {n}: {n * 7} {WORDS}." for n in range(40))
TASKS = [f"Which ferry leaves after {n} o'clock?" for n in range(20)]


def known(texts: list[str]) -> SharedText:
    shared = SharedText()
    for text in texts:
        shared.note([text])
    return shared


@pytest.mark.parametrize("form", ["{preamble}\n\n{task}", "{task}\n{preamble}", "{task}"])
def test_a_preamble_that_many_share_is_left_out(form: str) -> None:
    texts = [form.format(preamble=PREAMBLE, task=task) for task in TASKS]
    shared = known(texts)
    assert [shared.without([text]).strip() for text in texts] == TASKS


def test_a_preamble_without_a_line_end_is_found_too() -> None:
    flat = PREAMBLE.replace("\n", " ")
    shared = known([f"{flat} {task}" for task in TASKS])
    left = shared.without([f"{flat} {TASKS[3]}"])
    # The passage in which preamble and task meet is nobody else's.
    assert left.endswith(TASKS[3])
    assert len(left) < len(TASKS[3]) + 400


def test_worked_examples_in_messages_of_their_own_are_left_out() -> None:
    examples = [f"Example {n}: {WORDS} {n}." * 8 for n in range(4)]
    shared = SharedText()
    for task in TASKS:
        shared.note([*examples, task])
    assert shared.without([*examples, "Which ferry is first?"]) == "Which ferry is first?"


def test_a_template_that_is_short_stays() -> None:
    texts = [f"Solve the following multiplication: {n} * 3." for n in range(20)]
    assert known(texts).without([texts[0]]) == texts[0]


def test_a_long_template_of_one_task_type_among_several_stays() -> None:
    texts = [f"{PREAMBLE}\n{task}" for task in TASKS]
    others = [f"short question {n}" for n in range(60)]
    mixed = [text for n, text in enumerate(others) for text in [text, *texts[n : n + 1]]]
    assert known(mixed).without([texts[0]]) == texts[0]


def test_text_that_is_nothing_but_shared_is_kept() -> None:
    assert known([PREAMBLE] * 20).without([PREAMBLE]) == PREAMBLE
    assert known([PREAMBLE] * 20).without([f"{PREAMBLE}\n?!"]) == f"{PREAMBLE}\n?!"


def test_few_conversations_share_nothing_yet() -> None:
    texts = [f"{PREAMBLE}\n{task}" for task in TASKS]
    assert known(texts[: SHARED_BY_AT_LEAST - 1]).without([texts[0]]) == texts[0]
    assert known(texts[:SHARED_BY_AT_LEAST]).without([texts[0]]) == TASKS[0]


def test_what_the_window_has_left_behind_is_forgotten() -> None:
    shared = known([f"{PREAMBLE}\n{task}" for task in TASKS])
    for number in range(WINDOW):
        shared.note([f"something else {number}"])
    passages = known([PREAMBLE])._counts.keys()
    assert passages
    assert shared._counts.keys().isdisjoint(passages)
    assert shared.without([f"{PREAMBLE}\nnew"]) == f"{PREAMBLE}\nnew"


def test_asked_is_what_the_user_says() -> None:
    messages: list[Message] = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}]},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    assert asked(messages, "fallback") == ["one", "two"]
    assert asked([], "fallback") == ["fallback"]


@given(st.lists(st.lists(st.text(max_size=80), min_size=1, max_size=3), max_size=12))
def test_short_texts_of_any_kind_come_back_whole(conversations: list[list[str]]) -> None:
    shared = SharedText()
    for texts in conversations:
        shared.note(texts)
    for texts in conversations:
        assert sum(map(len, texts)) < LEAST_CHARACTERS
        assert shared.without(texts) == "\n".join(texts)
