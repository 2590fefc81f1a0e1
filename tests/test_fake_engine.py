import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fake_engine import FakeEngine
from tests.fake_engine.tool_calls import ToolCallStream, extract
from tests.running import wait_until

HELLO = [{"role": "user", "content": "3 * 4 = ?"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
TWO_CALLS = (
    'Sure. <tool_call>{"name": "add", "arguments": {"x": 1, "y": "é"}}</tool_call>'
    '<tool_call>{"name": "mul", "arguments": {}}</tool_call>'
)


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


def chat(engine: FakeEngine, timeout: float | None = 5.0, **fields: Any) -> dict[str, Any]:
    body = {"model": "base", "messages": HELLO} | fields
    return httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=timeout).json()


def stream(engine: FakeEngine, **fields: Any) -> list[dict[str, Any]]:
    body = {"model": "base", "messages": HELLO, "stream": True} | fields
    text = httpx.post(f"{engine.url}/v1/chat/completions", json=body).text
    return [json.loads(event[6:]) for event in text.split("\n\n") if event.startswith("data: {")]


def load(engine: FakeEngine, name: str, path: Path) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path)}
    return httpx.post(f"{engine.url}/v1/load_lora_adapter", json=body)


def num_tokens(engine: FakeEngine) -> float:
    lines = httpx.get(f"{engine.url}/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if "tokens_total" in line)


def prompt_logprobs(engine: FakeEngine, model: str) -> list[Any]:
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 1, "prompt_logprobs": 0}
    answer = httpx.post(f"{engine.url}/v1/completions", json=body).json()
    return answer["choices"][0]["prompt_logprobs"]


def test_a_stop_breaks_a_running_answer_and_a_start_is_empty_on_the_same_port(engine, tmp_path):
    load(engine, "denizen-000001", tmp_path)
    engine.control(stall_after_chunks=2)
    url, body = engine.url, {"model": "base", "messages": HELLO, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        engine.stop()
        with pytest.raises(httpx.TransportError):
            list(lines)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")
    engine.start()
    assert engine.url == url
    assert engine.adapters == {}
    assert httpx.get(f"{url}/health").status_code == 200


def test_a_hung_engine_is_healthy_and_counts_no_token_until_it_is_let_go(engine):
    engine.control(hangs=True)
    answers: list[dict[str, Any]] = []
    asking = threading.Thread(target=lambda: answers.append(chat(engine, timeout=None)))
    asking.start()
    wait_until(lambda: engine.paths("/v1/chat") != [])
    assert httpx.get(f"{engine.url}/health").status_code == 200
    time.sleep(0.1)
    assert (answers, num_tokens(engine)) == ([], 0.0)
    engine.reset()
    asking.join(5)
    assert len(answers) == 1


def test_a_hung_engine_ends_no_load(engine, tmp_path):
    engine.control(hangs=True)
    body = {"lora_name": "denizen-000001", "lora_path": str(tmp_path)}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{engine.url}/v1/load_lora_adapter", json=body, timeout=0.1)
    assert engine.adapters == {}


@pytest.mark.parametrize("is_streamed", [False, True])
def test_the_tokens_of_a_slow_answer_are_counted_as_they_come(engine, is_streamed):
    engine.control(seconds_per_token=0.05)
    asking = threading.Thread(target=lambda: (stream if is_streamed else chat)(engine))
    asking.start()
    counts: list[float] = []
    while asking.is_alive():
        counts.append(num_tokens(engine))
        time.sleep(0.01)
    assert counts == sorted(counts)
    assert len(set(counts)) > 3


def test_an_adapter_beyond_the_slots_is_taken_and_the_least_used_weights_go(tmp_path):
    with FakeEngine(max_loras=2) as engine:
        for name in "abc":
            (tmp_path / name).mkdir()
            assert load(engine, name, tmp_path / name).status_code == 200
        assert (len(engine.adapters), engine.adapters.most_held) == (3, 3)
        assert engine.adapters.num_evictions == 1
        chat(engine, model="b")
        assert engine.adapters.num_evictions == 1  # its weights were there
        (tmp_path / "a").rmdir()
        assert "error" in chat(engine, model="a")  # its weights had gone, and now its folder
        httpx.post(f"{engine.url}/v1/unload_lora_adapter", json={"lora_name": "a"})
        assert (set(engine.adapters), engine.adapters.most_held) == ({"b", "c"}, 3)


def test_unloaded_weights_stay_until_others_put_them_out(tmp_path):
    with FakeEngine(max_loras=2) as engine:
        for name in "ab":
            load(engine, name, tmp_path)
        httpx.post(f"{engine.url}/v1/unload_lora_adapter", json={"lora_name": "b"})
        load(engine, "c", tmp_path)
        assert engine.adapters.num_evictions == 1  # of a, which was used before b


def test_a_load_is_refused_by_name_or_always(engine, tmp_path):
    engine.control(refuse_load={"denizen-000002": 500})
    assert load(engine, "denizen-000001", tmp_path).status_code == 200
    assert load(engine, "denizen-000002", tmp_path).status_code == 500
    engine.control(refuse_load={"*": 400})
    assert load(engine, "denizen-000003", tmp_path).status_code == 400
    assert list(engine.adapters) == ["denizen-000001"]


def test_a_slow_load_takes_its_time(engine, tmp_path):
    engine.control(load_delay_s=0.2)
    began = time.monotonic()
    assert load(engine, "denizen-000001", tmp_path).status_code == 200
    assert time.monotonic() - began >= 0.2


def test_an_adapter_changes_numbers_and_words_unless_it_is_to_have_no_effect(engine, tmp_path):
    load(engine, "denizen-000001", tmp_path)

    def both() -> list[tuple[Any, Any]]:
        return [
            (prompt_logprobs(engine, model), chat(engine, model=model)["choices"])
            for model in ("base", "denizen-000001")
        ]

    base, adapted = both()
    assert base[0] != adapted[0]
    assert base[1] != adapted[1]
    engine.control(no_effect=True)
    assert both() == [base, base]


def test_markup_becomes_tool_calls_when_tools_are_offered(engine):
    engine.answer = lambda model, messages: TWO_CALLS
    [choice] = chat(engine, tools=TOOLS)["choices"]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Sure. "
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
        ("add", '{"x": 1, "y": "é"}'),
        ("mul", "{}"),
    ]
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
def test_markup_stays_text_when_no_tool_may_be_called(engine, fields):
    engine.answer = lambda model, messages: TWO_CALLS
    [choice] = chat(engine, **fields)["choices"]
    assert choice["message"]["content"] == TWO_CALLS
    assert choice["finish_reason"] == "stop"


def test_a_call_that_is_no_json_is_text():
    text = '<tool_call>{"name": "add", "arguments": {</tool_call>'
    assert extract(text) == (text, [])


def test_the_streamed_tool_calls_are_the_plain_ones_and_end_with_the_same_reason(engine):
    engine.answer = lambda model, messages: TWO_CALLS
    chunks = stream(engine, tools=TOOLS)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    fragments = [one for delta in deltas for one in delta.get("tool_calls") or ()]
    arguments = {0: "", 1: ""}
    for fragment in fragments:
        arguments[fragment["index"]] += fragment["function"].get("arguments") or ""
    assert arguments == {0: '{"x": 1, "y": "é"}', 1: "{}"}
    assert [one["function"]["name"] for one in fragments if "id" in one] == ["add", "mul"]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Sure. "
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("cut", range(len(TWO_CALLS)))
def test_the_deltas_add_up_wherever_the_text_is_cut(cut):
    parser, content, arguments = ToolCallStream(), "", ["", ""]
    for piece in (TWO_CALLS[:cut], TWO_CALLS[cut:]):
        delta = parser.delta(piece)
        content += delta.get("content", "")
        for fragment in delta.get("tool_calls") or ():
            arguments[fragment["index"]] += fragment["function"].get("arguments") or ""
    assert (content, arguments) == ("Sure. ", ['{"x": 1, "y": "é"}', "{}"])


def test_chunks_of_markup_are_empty_and_come_only_with_ids(engine):
    engine.answer = lambda model, messages: TWO_CALLS
    quiet = stream(engine, tools=TOOLS)
    exact = stream(engine, tools=TOOLS, return_token_ids=True)
    empty = [chunk for chunk in exact if chunk["choices"][0]["delta"] == {}]
    assert len(exact) - len(quiet) == len(empty) - 1 > 0  # the last chunk is empty in both
    ids = [token for chunk in exact for token in chunk["choices"][0].get("token_ids") or ()]
    assert ids == [*engine.tokenize(TWO_CALLS), 2]


def test_a_prompt_with_the_tool_calls_of_an_answer_extends_its_tokens(engine):
    engine.answer = lambda model, messages: TWO_CALLS
    answer = chat(engine, tools=TOOLS, return_token_ids=True)
    message = answer["choices"][0]["message"]
    history = [*HELLO, message, {"role": "tool", "tool_call_id": "x", "content": "3"}]
    later = chat(engine, tools=TOOLS, return_token_ids=True, messages=history)
    so_far = answer["prompt_token_ids"] + answer["choices"][0]["token_ids"]
    assert later["prompt_token_ids"][: len(so_far)] == so_far


class NoTokenizer:
    """What vLLM's parser wants of a tokenizer."""

    def get_vocab(self) -> dict[str, int]:
        return {}


@pytest.mark.engine
@pytest.mark.parametrize(
    "text",
    [
        TWO_CALLS,
        '<tool_call>\n{"name": "add", "arguments": {"x": {"z": [1, "}"]}}}\n</tool_call>',
        'a < b <tool_call>{"name": "add", "arguments": {"x": 1}}',
        '<tool_call>{"name": "add", "arguments": {</tool_call>',
    ],
)
def test_the_deltas_are_those_of_vllms_own_parser(text):
    hermes = pytest.importorskip("vllm.tool_parsers.hermes_tool_parser")

    def shown(index: int, has_id: bool, function: Any) -> tuple[Any, ...]:
        return index, has_id, function.get("name"), function.get("arguments")

    cuts = [list(text), *([text[:cut], text[cut:]] for cut in range(1, len(text)))]
    for chunks in cuts:
        real, fake, before = hermes.Hermes2ProToolParser(NoTokenizer()), ToolCallStream(), ""
        for chunk in chunks:
            now, ids = before + chunk, ([], [], [])
            wanted = real.extract_tool_calls_streaming(before, now, chunk, *ids, None)
            found, before = fake.delta(chunk), now
            assert found.get("content") == (wanted.content if wanted else None)
            assert [
                shown(call["index"], "id" in call, call["function"])
                for call in found.get("tool_calls") or ()
            ] == [
                shown(call.index, call.id is not None, call.function.model_dump())
                for call in (wanted.tool_calls if wanted else ())
            ]
