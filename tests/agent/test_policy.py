import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from agent.policy import PolicyClient, ServedModel
from tests.fake_engine import FakeEngine

HELLO = [{"role": "user", "content": "3 * 4 = ?"}]
STREAM = {"model": "base", "messages": HELLO, "stream": True}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(api_key="secret-key") as engine:
        yield engine


@pytest.fixture
async def client(engine: FakeEngine) -> AsyncIterator[PolicyClient]:
    async with PolicyClient(engine.url, "secret-key") as client:
        yield client


async def collect(client: PolicyClient, body: dict = STREAM) -> list[bytes]:
    return [data async for data in client.stream(body)]


async def wait_for(claim, timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def test_chat_passes_body_and_answer_on_unchanged(engine, client):
    body = {"model": "base", "messages": HELLO, "max_tokens": 3, "return_token_ids": True}
    answer = await client.chat(body)
    assert engine.requests[-1].body == body
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["token_ids"]) == 3


async def test_the_key_is_sent_as_bearer_and_a_wrong_one_is_the_services_fault(engine):
    async with PolicyClient(engine.url, "wrong") as client:
        with pytest.raises(EngineError, match="key"):
            await client.models()


async def test_the_streamed_text_equals_the_plain_answer(client):
    plain = await client.chat({"model": "base", "messages": HELLO})
    events = [json.loads(data) for data in await collect(client)]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == plain["choices"][0]["message"]["content"]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


def pieces_of(raw: str, size: int) -> list[str]:
    return [raw[start : start + size] for start in range(0, len(raw), size)]


# "é" and "🙂" as UTF-8 bytes written in latin-1: the split falls inside characters too.
RAW = (
    'data: {"a":"\u00c3\u00a9"}\r\n\r\n'
    ": comment\n\n"
    'data:{"b":"\u00f0\u009f\u0099\u0082"}\n\n'
    "data: one\ndata: two\n\n"
    "data: [DONE]\n\n"
)
EVENTS = ['{"a":"é"}'.encode(), '{"b":"🙂"}'.encode(), b"one\ntwo"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
async def test_events_do_not_depend_on_how_the_network_cut_them(engine, client, size):
    engine.control(raw_chunks=pieces_of(RAW, size))
    assert await collect(client) == EVENTS


@pytest.mark.parametrize("cut", range(0, len(RAW), 3))
async def test_any_single_cut_gives_the_same_events(engine, client, cut):
    engine.control(raw_chunks=[piece for piece in (RAW[:cut], RAW[cut:]) if piece])
    assert await collect(client) == EVENTS


async def test_a_stream_that_is_cut_raises_after_what_came(engine, client):
    engine.control(cut_after_chunks=3)
    seen = []
    with pytest.raises(EngineError):
        async for data in client.stream(STREAM):
            seen.append(data)
    assert len(seen) <= 3


async def test_a_stream_that_ends_without_done_raises(engine, client):
    engine.control(raw_chunks=['data: {"a": 1}\n\n'])
    with pytest.raises(EngineError, match="before its answer was complete"):
        await collect(client)


async def test_an_error_event_in_the_stream_raises_with_its_message(engine, client):
    engine.control(error_after_chunks=2)
    with pytest.raises(EngineError, match="ordered by the test"):
        await collect(client)


async def test_closing_the_iterator_closes_the_engines_connection_at_once(engine, client):
    engine.control(stall_after_chunks=2)
    async with aclosing(client.stream(STREAM)) as events:
        await anext(events)
    await wait_for(lambda: engine.requests[-1].disconnected)


async def test_cancelling_a_chat_closes_the_engines_connection(engine, client):
    engine.control(delay_s=30)
    chat = asyncio.create_task(client.chat({"model": "base", "messages": HELLO}))
    await wait_for(lambda: engine.requests)
    chat.cancel()
    with pytest.raises(asyncio.CancelledError):
        await chat
    await wait_for(lambda: engine.requests[-1].disconnected)


async def test_an_unknown_model_is_rejected_with_the_engines_status_and_message(client):
    with pytest.raises(EngineRejectedError, match="`nope` does not exist") as caught:
        await client.chat({"model": "nope", "messages": HELLO})
    assert (caught.value.status, caught.value.param) == (404, "model")


async def test_a_rejected_stream_raises_before_its_first_event(client):
    with pytest.raises(EngineRejectedError) as caught:
        await collect(client, {**STREAM, "max_tokens": -1})
    assert (caught.value.status, caught.value.param) == (400, "max_tokens")


@pytest.mark.parametrize(
    ("status", "expected"), [(500, EngineError), (503, EngineUnavailableError)]
)
async def test_the_engines_own_failure_is_not_the_callers(engine, client, status, expected):
    engine.control(http_error=status)
    with pytest.raises(expected, match="ordered by the test"):
        await client.chat({"model": "base", "messages": HELLO})


async def test_an_answer_that_is_no_json_is_an_engine_error(engine, client):
    engine.control(raw_chunks=["<html>"])  # a streamed answer to a call that expects JSON
    with pytest.raises(EngineError, match="no JSON"):
        await client.chat({**STREAM})


async def test_an_engine_that_is_down_is_unavailable_with_a_retry_time(engine, client):
    await client.models()
    engine.stop()
    with pytest.raises(EngineUnavailableError) as caught:
        await client.models()
    assert (caught.value.status, caught.value.retry_after_s > 0) == (503, True)
    assert not await client.health()
    engine.start()
    assert await client.health()


async def test_an_address_where_nobody_listens_is_unavailable():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with PolicyClient(f"http://127.0.0.1:{unused.getsockname()[1]}") as client:
            with pytest.raises(EngineUnavailableError):
                await client.chat({"model": "base", "messages": HELLO})


async def test_an_unhealthy_engine_is_not_healthy(engine, client):
    engine.control(health_status=503)
    assert not await client.health()


async def test_an_engine_that_answers_makes_progress(client):
    assert await client.makes_progress("base", 5.0)


async def test_an_engine_that_is_healthy_but_answers_nothing_makes_none(engine, client):
    engine.control(delay_s=30)
    assert await client.health()
    assert not await client.makes_progress("base", 0.1)


async def test_an_engine_too_busy_to_answer_in_time_makes_progress(engine, client):
    engine.control(delay_s=0.3, chunk_delay_s=0.05)
    busy = asyncio.create_task(collect(client))
    await wait_for(lambda: engine.paths("/v1/chat"))
    assert await client.makes_progress("base", 0.4)
    await busy


async def test_an_engine_that_is_gone_makes_no_progress(engine, client):
    engine.stop()
    assert not await client.makes_progress("base", 0.1)


async def test_adapters_are_loaded_and_unloaded_by_name(engine, client, tmp_path):
    await client.load_adapter("denizen-000001", tmp_path)
    assert await client.models() == ["base", "denizen-000001"]
    assert engine.adapters == {"denizen-000001": str(tmp_path)}
    await client.unload_adapter("denizen-000001")
    assert await client.models() == ["base"]


async def test_served_models_tell_base_and_adapter_apart(client, tmp_path):
    await client.load_adapter("denizen-000001", tmp_path)
    assert await client.served() == [
        ServedModel("base", "fake/base", None),
        ServedModel("denizen-000001", str(tmp_path), "base"),
    ]


async def test_the_base_models_root_is_told(client):
    assert await client.base_root() == "fake/base"


async def test_a_missing_adapter_folder_is_rejected(client):
    with pytest.raises(EngineRejectedError, match="No adapter found") as caught:
        await client.load_adapter("denizen-000001", Path("/no/such/folder"))
    assert caught.value.status == 404


async def test_an_adapter_the_engine_cannot_read_is_an_engine_error(engine, client, tmp_path):
    engine.control(refuse_load={"*": 500})
    with pytest.raises(EngineError):
        await client.load_adapter("denizen-000001", tmp_path)


async def test_prompt_logprobs_are_one_per_token_and_the_first_is_unknown(client):
    logprobs = await client.prompt_logprobs("base", [5, 6, 7])
    assert logprobs[0] is None
    assert len(logprobs) == 3
    assert all(value < 0 for value in logprobs[1:])


async def test_sixty_four_requests_run_at_the_same_time(engine, client):
    engine.control(delay_s=0.2)
    began = time.monotonic()
    await asyncio.gather(*(client.chat({"model": "base", "messages": HELLO}) for _ in range(64)))
    assert time.monotonic() - began < 2.0
