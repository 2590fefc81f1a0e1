import pytest

from agent.sessions import chain_key, earlier_keys

HI = {"role": "user", "content": "hi"}
HELLO = {"role": "assistant", "content": "hello"}
MORE = {"role": "user", "content": "and more"}
SUM = {"name": "add", "arguments": '{"x": 1}'}


def test_a_request_continues_the_call_whose_messages_and_answer_it_begins_with():
    assert earlier_keys([HI, HELLO, MORE], scope="") == [chain_key([HI, HELLO], scope="")]


def test_the_longest_continuation_comes_first():
    history = [HI, HELLO, MORE, HELLO, MORE]
    assert earlier_keys(history, scope="") == [
        chain_key(history[:4], scope=""),
        chain_key(history[:2], scope=""),
    ]


def test_a_first_request_continues_nothing():
    assert earlier_keys([HI], scope="") == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [{"function": SUM}]},) * 2,
        (
            {"role": "assistant", "content": None, "tool_calls": [{"function": SUM}]},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "x", "function": SUM}]},
        ),
        (
            {"role": "assistant", "content": "hello"},
            {"role": "assistant", "content": [{"type": "text", "text": "hello"}], "name": "x"},
        ),
    ],
)
def test_spellings_of_one_meaning_give_one_key(one, other):
    assert chain_key([HI, one], scope="") == chain_key([HI, other], scope="")


def test_other_words_other_speakers_and_other_calls_give_other_keys():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": SUM}]}
    keys = {
        chain_key([HI, HELLO], scope=""),
        chain_key([HI, HELLO], scope="ann"),
        chain_key([HI, MORE], scope=""),
        chain_key([HELLO, HI], scope=""),
        chain_key([HI, call], scope=""),
        chain_key([HI], scope=""),
    }
    assert len(keys) == 6
