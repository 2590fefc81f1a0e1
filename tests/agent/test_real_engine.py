"""The engine side against the real vLLM: right numbers in mixed batches, and the fake's shapes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from agent.adapter_slot import AdapterSlot
from agent.policy import PolicyClient
from bench.adapters import write_adapter
from memory.errors import AdapterError
from tests.fake_engine import FakeEngine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

FIRST, SECOND = "denizen-000901", "denizen-000902"
QUESTION = [{"role": "user", "content": "What is 2 times 5? Answer briefly."}]


def rename_modules(folder: Path, old: str, new: str) -> None:
    """Have the adapter in ``folder`` name modules that the model does not have."""
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    save_file({name.replace(old, new): it for name, it in load_file(weights).items()}, weights)
    config.write_text(config.read_text("utf-8").replace(old, new), encoding="utf-8")


class Folder:
    """Adapter files that are taken as they are."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def path_of(self, version: str) -> Path:
        return self.root / version


@pytest.fixture(scope="module")
def home(real_service, tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("adapters")
    model = real_service.model_dir
    write_adapter(home / FIRST, model, seed=1)
    write_adapter(home / SECOND, model, seed=2)
    write_adapter(home / "denizen-000903", model, seed=3, scale=0.0)
    rename_modules(write_adapter(home / "denizen-000904", model, seed=4), "_proj", "_layer")
    weights = write_adapter(home / "denizen-000905", model, seed=5) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    return home


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(real_service) -> AsyncIterator[PolicyClient]:
    async with real_service.engine_client() as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slot(client, home) -> AsyncIterator[AdapterSlot]:
    slot = AdapterSlot([client], Folder(home))
    await slot.restore(client)
    await slot.publish(FIRST)
    await slot.publish(SECOND)
    yield slot
    for version in (FIRST, SECOND):  # the engine is shared
        await client.unload_adapter(version)
    await slot.close()


async def logprobs(client: PolicyClient, model: str) -> list[float]:
    body = {"model": model, "messages": QUESTION, "max_tokens": 3, "temperature": 0}
    answer = await client.chat({**body, "logprobs": True})
    return [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("denizen-000903", "no effect"),  # zero weights
        ("denizen-000904", "denizen-000904"),  # modules that the model does not have
        ("denizen-000905", "refused"),  # truncated
        ("denizen-000906", "refused"),  # no folder
    ],
)
async def test_an_adapter_that_cannot_be_right_is_refused_and_the_rest_stays(
    slot, client, version, reason
):
    with pytest.raises(AdapterError, match=reason):
        await slot.publish(version)
    assert set(slot.resident) == {FIRST, SECOND}
    assert FIRST in await client.models()


async def test_a_version_can_be_unloaded_and_loaded_again(slot, client):
    slot.unload(SECOND)
    async with slot.lease(SECOND) as lease:
        assert len(await logprobs(client, lease.model)) == 3


def shape(value: Any) -> Any:
    """Return keys and kinds of a JSON value; a list is the shape of its first element."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


@pytest.mark.parametrize("asks_for_ids", [False, True])
async def test_the_fake_engine_answers_in_the_real_ones_shapes(client, asks_for_ids):
    ids = {"return_token_ids": True, "logprobs": True} if asks_for_ids else {}
    body = {"model": "base", "messages": QUESTION, "max_tokens": 3, "temperature": 0, **ids}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with FakeEngine() as fake:
        async with PolicyClient(fake.url) as pretender:
            assert shape(await client.chat(body)) == shape(await pretender.chat(body))
            real = [shape(json.loads(data)) async for data in client.stream(streamed)]
            pretended = [shape(json.loads(data)) async for data in pretender.stream(streamed)]
    assert [real[0], real[1], real[-2], real[-1]] == [
        pretended[0],
        pretended[1],
        pretended[-2],
        pretended[-1],
    ]


async def test_an_engine_at_work_makes_progress(client):
    assert await client.makes_progress("base", 60.0)
