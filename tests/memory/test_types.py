import pytest

from memory.types import Split, message_text, split_of, task_id, task_text


def question(content, role="user"):
    return {"role": role, "content": content}


@pytest.mark.parametrize("number", range(40))
def test_a_question_stays_on_its_side_however_it_is_asked(number):
    text = f"What is {number} times 7?"
    plain = split_of([question(text)], heldout_share=0.3)
    for messages in (
        [question([{"type": "text", "text": text}])],
        [question(f"  What is {number}\n times 7? ")],
        [question("You are terse.", "system"), question(text)],
    ):
        assert split_of(messages, heldout_share=0.3) is plain


def test_about_the_asked_share_is_held_out():
    splits = [split_of([question(f"task {n}")], heldout_share=0.25) for n in range(1000)]
    assert 200 < splits.count(Split.HELDOUT) < 300


def test_tasks_that_are_graded_otherwise_are_other_tasks():
    messages = [question("x")]
    ids = {
        task_id(messages, "1", "exact", {}),
        task_id(messages, "2", "exact", {}),
        task_id(messages, "1", "contains", {}),
        task_id(messages, None, "regex", {"pattern": "a"}),
        task_id(messages, None, "regex", {"pattern": "b"}),
    }
    assert len(ids) == 5
    assert task_id(messages, "1", "exact", {}) in ids


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        (None, ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"type": "image_url"}, {"type": "text", "text": 5}, "x"], ""),
    ],
)
def test_text_of_a_message_is_what_is_text_in_it(content, text):
    assert message_text({"role": "user", "content": content}) == text


def test_a_task_is_what_the_user_asked_first():
    assert task_text([question("s", "system"), question("a"), question("b")]) == "a"
    assert task_text([]) == ""
