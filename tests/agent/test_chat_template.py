"""The packaged model's chat template with tools, beside the model's own."""

import json
import re
import tomllib
from typing import Any

import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from agent.base_model import _packaged_gguf
from agent.vllm_command import TOOL_TEMPLATE
from tests.running import REPOSITORY

Message = dict[str, Any]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a place, in °C",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
HELLO = {"role": "user", "content": "Hello"}


@pytest.fixture(scope="module")
def own() -> str:
    """The template that the model came with."""
    field = GGUFReader(_packaged_gguf()).fields["tokenizer.chat_template"]
    return bytes(field.parts[field.data[0]]).decode("utf-8")


def render(
    messages: list[Message], tools: Any = None, *, template: str | None = None, prompt: bool = True
) -> str:
    if template is None:
        template = TOOL_TEMPLATE.read_text(encoding="utf-8")
    (text,), _ = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        add_generation_prompt=prompt,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )
    return text


def call(name: str, arguments: Any, id: str = "1") -> Message:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls_in(text: str) -> list[Message]:
    """Read the calls as vLLM's Hermes parser does."""
    return [json.loads(found) for found in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.S)]


def last_turn(text: str) -> str:
    return text.rpartition("<|im_start|>")[2]


PLAIN = [
    [HELLO],
    [{"role": "system", "content": "Be brief."}, HELLO],
    [{"role": "system", "content": ""}, HELLO],
    [{"role": "developer", "content": "Be brief."}, HELLO],
    [HELLO, {"role": "assistant", "content": "Hi!\n"}, {"role": "user", "content": " \n How? \n"}],
    [HELLO, {"role": "system", "content": "A late word."}, HELLO],
    [{"role": "system", "content": "{{ x }} {% if %} <tools> é 漢 🙂"}, HELLO],
    [{"role": "assistant", "content": "I begin."}],
]


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("messages", PLAIN)
@pytest.mark.parametrize("tools", [None, []])
def test_without_tools_it_says_what_the_models_own_says(own, messages, tools, prompt):
    expected = render(messages, template=own, prompt=prompt)
    assert render(messages, tools, prompt=prompt) == expected


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["system", "developer", "user", "assistant"]),
                "content": st.text(max_size=40),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_any_conversation_without_tools_is_the_models_own(own, messages, prompt):
    assert render(messages, prompt=prompt) == render(messages, template=own, prompt=prompt)


@pytest.mark.parametrize("calls", [None, []])
def test_an_answer_without_calls_is_the_models_own_however_that_is_spelled(own, calls):
    answer = {"role": "assistant", "content": "Hi"}
    expected = render([HELLO, answer], template=own)
    assert render([HELLO, answer | {"tool_calls": calls}]) == expected


@pytest.mark.parametrize(
    ("messages", "system"),
    [
        ([HELLO], "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
        ([{"role": "system", "content": "Be brief."}, HELLO], "Be brief."),
    ],
)
def test_tools_are_offered_once_in_the_first_system_message(messages, system):
    text = render(messages, [WEATHER, WEATHER])
    assert text.startswith(f"<|im_start|>system\n{system}\n\n# Tools\n\n")
    (offered,) = re.findall(r"<tools>\n(.*?)</tools>\n", text, re.S)
    assert [json.loads(line) for line in offered.splitlines()] == [WEATHER, WEATHER]
    assert "°C" in offered  # as it is, not \u00b0
    assert text.endswith(
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_later_system_message_offers_nothing_again():
    late = {"role": "system", "content": "A late word."}
    assert render([HELLO, late], [WEATHER]).count("# Tools") == 1


@pytest.mark.parametrize(
    "arguments",
    [{"place": "Köln", "days": 2}, '{"place": "Köln", "days": 2}'],
    ids=["object", "text"],
)
@pytest.mark.parametrize("content", [None, "", "missing"])
def test_a_call_reads_as_the_parser_wants_it(arguments, content):
    answer: Message = {"role": "assistant", "tool_calls": [call("get_weather", arguments)]}
    if content != "missing":
        answer["content"] = content
    text = render([HELLO, answer], [WEATHER], prompt=False)
    assert last_turn(text) == (
        'assistant\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"place": "Köln", "days": 2}}\n</tool_call><|im_end|>\n'
    )


@pytest.mark.parametrize("arguments", [None, "", {}, "{}"])
def test_a_call_without_arguments_has_an_empty_object(arguments):
    answer = {"role": "assistant", "content": None, "tool_calls": [call("now", arguments)]}
    text = render([HELLO, answer], prompt=False)
    assert calls_in(last_turn(text)) == [{"name": "now", "arguments": {}}]


def test_parallel_calls_follow_the_text_each_in_its_own_tags():
    calls = [call("f", {"x": 1}, "1"), call("g", {"y": [None, True]}, "2")]
    answer = {"role": "assistant", "content": "Let me look.", "tool_calls": calls}
    turn = last_turn(render([HELLO, answer], [WEATHER], prompt=False))
    assert turn.startswith("assistant\nLet me look.\n<tool_call>\n")
    assert calls_in(turn) == [
        {"name": "f", "arguments": {"x": 1}},
        {"name": "g", "arguments": {"y": [None, True]}},
    ]


def test_results_share_a_turn_and_name_the_function_whose_call_they_answer():
    calls = [call("f", {}, "a"), call("g", {}, "b")]
    text = render(
        [
            HELLO,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "b", "content": 'of "g"'},
            {"role": "tool", "tool_call_id": "a", "content": "of f"},
            {"role": "user", "content": "And?"},
        ],
        prompt=False,
    )
    assert (
        "<|im_start|>tool\n"
        '<tool_response>\n{"name": "g", "content": "of \\"g\\""}\n</tool_response>\n'
        '<tool_response>\n{"name": "f", "content": "of f"}\n</tool_response><|im_end|>\n'
        "<|im_start|>user\nAnd?<|im_end|>\n"
    ) in text


def test_an_id_that_is_used_again_belongs_to_the_call_before_the_result():
    messages: list[Message] = [HELLO]
    for name in ("first", "second"):
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call(name, {}, "0")]},
            {"role": "tool", "tool_call_id": "0", "content": "done"},
        ]
    named = re.findall(r'<tool_response>\n\{"name": "(\w+)"', render(messages))
    assert named == ["first", "second"]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"tool_call_id": "?"}, "42"),
        ({}, "42"),
        ({"name": "sum"}, '{"name": "sum", "content": "42"}'),
    ],
)
def test_a_result_whose_call_is_unknown_is_shown_all_the_same(message, shown):
    text = render([HELLO, {"role": "tool", "content": "42", **message}], prompt=False)
    assert last_turn(text) == f"tool\n<tool_response>\n{shown}\n</tool_response><|im_end|>\n"


def test_the_template_travels_with_the_package():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["agent"]
    folder = REPOSITORY / "agent"
    assert TOOL_TEMPLATE in {file for pattern in patterns for file in folder.glob(pattern)}
