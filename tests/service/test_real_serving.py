"""Swaps, tools, seeds and a killed engine, with the real vLLM behind the whole service."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import httpx
import openai
import psutil
import pytest

from bench.adapters import write_adapter
from tests.running import ServiceThread, ask, is_ready, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

NUM_STREAMS = 8
NUM_SWAPS = 20
PROMPTS = [
    "What is 7 times 8?",
    "Name a colour.",
    "Say hello.",
    "What is the sea?",
    "Who wrote Hamlet?",
    "What is a dog?",
    "Count to five.",
    "Why is the sky blue?",
]
GREEDY = {"temperature": 0, "max_tokens": 12}
MIN_MARGIN, TOLERANCE = 0.3, 0.02  # nats
RESTART_TIMEOUT_S = 180.0
"""A start takes 30 to 45 s on two cores; ``bench/swaps.py`` measures it."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def versions(real_service, tmp_path_factory) -> list[str]:
    """Bring two versions in from outside; the second is live."""
    http = real_service.http
    work = tmp_path_factory.mktemp("outside")
    imported = []
    for seed in (11, 12):
        folder = write_adapter(work / str(seed), real_service.model_dir, seed=seed, scale=0.05)
        files = {path.name: (path.name, path.read_bytes()) for path in folder.iterdir()}
        answer = http.post("/v1/adapters", files=files)
        assert answer.status_code == 201, answer.text
        imported.append(answer.json()["id"])
        go_live(http, imported[-1])
    return imported


def go_live(http: httpx.Client, version: str) -> None:
    body = {"force": True, "reason": "a test"}
    http.post(f"/v1/adapters/{version}/promote", json=body).raise_for_status()


def alone(http: httpx.Client, version: str, prompt: str) -> tuple[float, str]:
    """Return how a version answers alone: its first token's log-probability, and its text.

    The text ends before the first token that another one nearly beat: in a batch the sums of
    bfloat16 come out a little differently, which may turn such a token.
    """
    model = f"denizen@{version.removeprefix('denizen-')}"
    body = ask(prompt, model=model, logprobs=True, top_logprobs=2, **GREEDY)
    answer = http.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    tokens = answer.json()["choices"][0]["logprobs"]["content"]
    text = ""
    for token in tokens:
        first, second = (one["logprob"] for one in token["top_logprobs"])
        if first - second < MIN_MARGIN:
            break
        text += token["token"]
    return tokens[0]["logprob"], text


async def streamed(http: aiohttp.ClientSession, prompt: str) -> tuple[str, float, str]:
    """Return one greedy stream: version in the header, first log-probability, whole text."""
    body = ask(prompt, stream=True, logprobs=True, **GREEDY)
    async with http.post("/v1/chat/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        lines = [line async for line in answer.content if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]\n"
    choices = [json.loads(line.removeprefix(b"data: "))["choices"][0] for line in lines[:-1]]
    tokens = [one for choice in choices for one in (choice["logprobs"] or {}).get("content", ())]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return answer.headers["x-denizen-adapter"], tokens[0]["logprob"], text


async def test_8_streams_through_20_swaps_answer_as_the_version_they_name(real_service, versions):
    http = real_service.http
    expected = {
        (version, prompt): alone(http, version, prompt)
        for version in versions
        for prompt in PROMPTS
    }
    for prompt in PROMPTS:
        one, other = (expected[version, prompt][0] for version in versions)
        assert abs(one - other) > 2 * TOLERANCE, prompt  # no answer fits both
    is_over = False
    answered: list[tuple[str, str, float, str]] = []

    async def talk(number: int) -> None:
        for prompt in itertools.islice(itertools.cycle(PROMPTS), number, None):
            if is_over:
                return
            answered.append((prompt, *await streamed(client, prompt)))

    async with aiohttp.ClientSession(real_service.service.url) as client:
        talking = [asyncio.create_task(talk(number)) for number in range(NUM_STREAMS)]
        for number in range(NUM_SWAPS):
            await asyncio.to_thread(go_live, http, versions[number % 2])
            await asyncio.sleep(0.3)
        is_over = True
        await asyncio.gather(*talking)
    assert {version for _, version, _, _ in answered} == set(versions)
    for prompt, version, logprob, text in answered:
        first, decisive = expected[version, prompt]
        assert logprob == pytest.approx(first, abs=TOLERANCE)
        assert text.startswith(decisive)


async def engine_requests(real_service: ServiceThread, body: dict[str, Any]) -> dict[str, Any]:
    async with real_service.engine_client() as client:
        return await client.chat(body)


async def test_a_tool_call_in_the_output_is_parsed(real_service):
    call = r'<tool_call>\n\{"name": "get_weather", "arguments": \{"city": "[A-Z][a-z]{2,8}"\}\}\n'
    body = ask("What is the weather in Paris?", model="base", temperature=0, max_tokens=60)
    body |= {"tools": [WEATHER], "structured_outputs": {"regex": call + "</tool_call>"}}
    choice = (await engine_requests(real_service, body))["choices"][0]
    [called] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert called["function"]["name"] == "get_weather"
    assert list(json.loads(called["function"]["arguments"])) == ["city"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tools_request_is_accepted_streamed_and_not(real_service, choice):
    url = f"{real_service.http.base_url}/v1"
    asked: dict[str, Any] = {
        "model": "denizen@base",
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER],
        "tool_choice": choice,
        "temperature": 0,
        "max_tokens": 60,
    }
    with openai.OpenAI(base_url=url, api_key="none") as client:
        plain = client.chat.completions.create(**asked).choices[0]
        stream = client.chat.completions.create(**asked, stream=True)
        chunks = [chunk.choices[0] for chunk in stream]
    fragments = [one for chunk in chunks for one in chunk.delta.tool_calls or []]
    arguments = "".join(one.function.arguments or "" for one in fragments if one.function)
    text = "".join(chunk.delta.content or "" for chunk in chunks)
    if choice == "required":
        assert plain.message.tool_calls and fragments
    if plain.message.tool_calls:
        assert json.loads(arguments) == json.loads(plain.message.tool_calls[0].function.arguments)
    else:
        assert text == plain.message.content


async def test_seeded_requests_with_long_prompts_leave_the_engine_alive(real_service):
    """Together they exceed what one step reads, so tokens of some steps are thrown away."""
    story = " ".join(f"Item {number} is red." for number in range(220))
    asked = ask(f"{story} Describe them.", model="denizen@base", seed=7, max_tokens=2)
    async with aiohttp.ClientSession(real_service.service.url) as client:

        async def num_prompt_tokens() -> int:
            async with client.post("/v1/chat/completions", json=asked) as answer:
                body = await answer.json()
                assert answer.status == 200, body
                return int(body["usage"]["prompt_tokens"])

        counts = await asyncio.gather(*(num_prompt_tokens() for _ in range(4)))
    assert sum(counts) > 4 * 1_500


def engine_processes(real_service: ServiceThread) -> list[psutil.Process]:
    """Return vLLM's server and what it started, without the leash above them."""
    engine = real_service.service.engines.child
    assert engine is not None
    [server] = [
        process
        for process in psutil.Process().children(recursive=True)
        if {"vllm.entrypoints.openai.api_server", str(engine.port)} <= set(process.cmdline())
        and "agent.leash" not in process.cmdline()
    ]
    return [server, *server.children(recursive=True)]


async def keep_asking(
    http: aiohttp.ClientSession, until: asyncio.Event
) -> AsyncIterator[tuple[int, str | None, dict[str, Any]]]:
    while not until.is_set():
        body = ask("Count to one hundred.", max_tokens=10, temperature=0)
        async with http.post("/v1/chat/completions", json=body) as answer:
            yield answer.status, answer.headers.get("x-denizen-adapter"), await answer.json()
        await asyncio.sleep(0.2)


def says_why(http: httpx.Client, reason: str) -> bool:
    """Say whether the service is not ready for a reason."""
    return any(reason in one for one in http.get("/ready").json()["reasons"])


async def test_a_killed_engine_comes_back_with_the_live_version(real_service, versions):
    http = real_service.http
    go_live(http, versions[0])
    is_over = asyncio.Event()
    seen: list[tuple[int, str | None, dict[str, Any]]] = []

    async def talk() -> None:
        async for one in keep_asking(client, is_over):
            seen.append(one)

    async with aiohttp.ClientSession(real_service.service.url) as client:
        talking = [asyncio.create_task(talk()) for _ in range(4)]
        await asyncio.to_thread(wait_until, lambda: len(seen) >= 4)
        for process in engine_processes(real_service):
            process.kill()
        killed_at = time.monotonic()
        await asyncio.to_thread(wait_until, lambda: says_why(http, "vLLM was killed"), 10)
        await asyncio.to_thread(wait_until, lambda: is_ready(http), RESTART_TIMEOUT_S)
        print(f"ready {time.monotonic() - killed_at:.0f} s after the kill")
        is_over.set()
        await asyncio.gather(*talking)
    statuses = {status for status, _, _ in seen}
    assert statuses <= {200, 502, 503}
    assert 503 in statuses
    assert {version for status, version, _ in seen if status == 200} == {versions[0]}
    assert all(body["error"]["message"] for status, _, body in seen if status != 200)
    assert (
        http.post("/v1/chat/completions", json=ask("hi")).headers["x-denizen-adapter"]
        == (versions[0])
    )
