import pytest

from agent.sessions import Keys

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "and more"}
MONDAY = {"role": "system", "content": "Today is Monday."}
TUESDAY = {"role": "system", "content": "Today is Tuesday."}
SUM = {"name": "add", "arguments": '{"x": 1}'}


def answered(messages, answer=HELLO, scope=""):
    return Keys.of(messages, scope=scope).answered_by(answer)


def test_a_request_continues_the_call_whose_messages_and_answer_it_begins_with():
    assert Keys.of([HI, HELLO, MORE], scope="").answers == (answered([HI]),)


def test_the_longest_continuation_comes_first():
    history = [HI, HELLO, MORE, HELLO, MORE]
    assert Keys.of(history, scope="").answers == (answered(history[:3]), answered([HI]))


def test_a_first_request_continues_nothing():
    assert Keys.of([HI], scope="").answers == ()


def test_an_answer_that_the_engine_is_to_go_on_with_was_not_given_before():
    assert Keys.of([HI, HELLO], scope="").answers == ()


def test_a_system_prompt_that_is_written_anew_does_not_hide_the_conversation():
    monday, tuesday = (Keys.of([day, HI, HELLO, MORE], scope="") for day in (MONDAY, TUESDAY))
    assert monday.answers == tuesday.answers == (answered([MONDAY, HI]),)
    assert monday.system != tuesday.system


def test_another_attempt_has_the_same_key_and_another_system_prompt_another():
    keys = [Keys.of(m, scope="").request for m in ([MONDAY, HI], [MONDAY, HI], [TUESDAY, HI])]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"role": "assistant", "content": None, "tool_calls": [{"function": SUM}]},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": SUM}]},
        ),
        (
            {"role": "assistant", "content": "", "tool_calls": [{"function": SUM}]},
            {
                "role": "assistant",
                "tool_calls": [{"function": SUM | {"arguments": '{ "x":1 }'}}],
            },
        ),
        (
            {"role": "assistant", "content": "hello"},
            {"role": "assistant", "content": [{"type": "text", "text": "hello"}], "name": "x"},
        ),
        (
            {"role": "assistant", "content": "<think>greet them</think>\n\nhello"},
            {"role": "assistant", "content": "hello"},
        ),
        (
            {"role": "assistant", "content": "hello\n"},
            {"role": "assistant", "content": "hello"},
        ),
    ],
)
def test_spellings_of_one_meaning_give_one_key(one, other):
    assert answered([HI], one) == answered([HI], other)


def test_other_words_other_speakers_and_other_calls_give_other_keys():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": SUM}]}
    keys = {
        answered([HI]),
        answered([HI], scope="ann"),
        answered([HI], MORE),
        answered([HELLO], HI),
        answered([HI], call),
        answered([]),
    }
    assert len(keys) == 6
