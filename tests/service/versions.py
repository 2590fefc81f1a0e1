"""Adapter versions for a running service, and what is asked of them."""

import tempfile
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.learner.adapters import adapter_config, write_adapter
from tests.running import ServiceThread, ask

HIDDEN, LAYERS, RANK = 32, 2, 2  # of the tiny model; its q_proj is square


def make_version(service: ServiceThread, *, seed: int = 1) -> str:
    """Seal a candidate that fits the tiny model and return its name; no gate has seen it."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{prefix}.lora_A.weight"] = rng.random((RANK, HIDDEN), np.float32)
        tensors[f"{prefix}.lora_B.weight"] = rng.random((HIDDEN, RANK), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_adapter(Path(folder), tensors, adapter_config(target_modules=["q_proj"]))
        registry = service.parts.registry
        sealed = registry.seal(Path(folder), parent="base", cycle_id=None, episode_ids=())
    return sealed.id


def make_versions(service: ServiceThread, num: int) -> list[str]:
    return [make_version(service, seed=seed) for seed in range(1, num + 1)]


def promote(service: ServiceThread, version: str) -> httpx.Response:
    """Promote by force, since no gate has passed it."""
    body = {"force": True, "reason": "a test"}
    return service.http.post(f"/v1/adapters/{version}/promote", json=body)


def go_live(service: ServiceThread, version: str) -> None:
    response = promote(service, version)
    assert response.status_code == 200, response.text
    assert response.json()["moved"] is True


def live(service: ServiceThread) -> str:
    version: str = service.http.get("/v1/status").json()["live"]
    return version


def chat(service: ServiceThread, text: str = "hi", **fields: Any) -> httpx.Response:
    return service.http.post("/v1/chat/completions", json=ask(text, **fields))


def text_of(response: httpx.Response) -> str:
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


def is_answer_of(response: httpx.Response, version: str) -> bool:
    """Say whether header and text both name the version; the base model is wordy."""
    told = response.headers.get("x-denizen-adapter")
    words = "Well" if version == "base" else f"{version}: "
    return response.status_code == 200 and told == version and text_of(response).startswith(words)
