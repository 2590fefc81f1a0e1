"""vLLM's HTTP routes besides chat, with the shapes of 0.32 and the faults that are ordered."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fake_engine.core import Core
from tests.fake_engine.refusals import error, refusal
from tests.fake_engine.tokens import logprob

if TYPE_CHECKING:
    from tests.fake_engine.server import FakeEngine


class Api:
    """Health, metrics, models, completions, tokens and adapters of one running server."""

    def __init__(self, engine: "FakeEngine", core: Core) -> None:
        self._engine = engine
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/metrics", self._metrics),
            web.get("/v1/models", self._models),
            web.post("/v1/completions", self._completions),
            web.post("/tokenize", self._tokenize),
            web.post("/v1/load_lora_adapter", self._load),
            web.post("/v1/unload_lora_adapter", self._unload),
        ]

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=self._engine.switches.health_status)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._core.metrics(self._engine.base_name))

    async def _models(self, _: web.Request) -> web.Response:
        base = self._engine.base_name
        entries = [self._model_entry(base, self._engine.root, None)]
        entries += [
            self._model_entry(name, path, base) for name, path in self._engine.adapters.items()
        ]
        return web.json_response({"object": "list", "data": entries})

    def _model_entry(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": None if parent else self._engine.max_model_len,
            "permission": [],
        }

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        refused = refusal(self._engine, body)
        if refused is not None:
            return refused
        prompt = body["prompt"]
        if isinstance(prompt, str):
            prompt = self._engine.tokenize(prompt)
        with self._core.running():
            await self._core.compute(1, num_prompt=len(prompt))
        return web.json_response(self._completion(body, prompt))

    def _completion(self, body: Mapping[str, Any], prompt: list[int]) -> dict[str, Any]:
        with_ids, model = body.get("return_token_ids"), body["model"]
        weights = self._engine.weights_of(model)
        entries: list[Any] = [None]
        for position, token in enumerate(prompt[1:], start=1):
            value = logprob(weights, position, token)
            entries.append({str(token): {"logprob": value, "rank": 1, "decoded_token": "?"}})
        choice = {
            "index": 0,
            "text": " .",
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [3] if with_ids else None,
            "prompt_logprobs": None if body.get("prompt_logprobs") is None else entries,
            "prompt_token_ids": prompt if with_ids else None,
        }
        num_prompt = len(prompt)
        return {
            "id": "cmpl-0",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": num_prompt,
                "total_tokens": num_prompt + 1,
                "completion_tokens": 1,
            },
        }

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = (
            self._engine.prompt_ids(body["messages"])
            if "messages" in body
            else self._engine.tokenize(body["prompt"])
        )
        return web.json_response(
            {"count": len(ids), "max_model_len": self._engine.max_model_len, "tokens": ids}
        )

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        switches = self._engine.switches
        await asyncio.sleep(switches.load_delay_s)
        await self._core.compute()
        refused = switches.refuse_load.get(name, switches.refuse_load.get("*"))
        if refused is not None:
            return error(refused, "ordered by the test", "InternalServerError")
        if name in self._engine.adapters:
            message = f"The lora adapter '{name}' has already been loaded."
            return error(400, message, "InvalidUserInput")
        if not Path(path).is_dir():
            message = f"Loading lora {name} failed: No adapter found for {path}"
            return error(404, message, "NotFoundError")
        self._engine.adapters.load(name, path)
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self._engine.switches.unload_hangs:
            await asyncio.Event().wait()
        await self._core.compute()
        if not self._engine.adapters.unload(name):
            message = f"The lora adapter '{name}' cannot be found."
            return error(404, message, "NotFoundError")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")
