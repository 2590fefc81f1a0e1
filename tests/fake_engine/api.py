"""vLLM's other routes, with the shapes of 0.32 and the faults that are ordered."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fake_engine.core import Core
from tests.fake_engine.refusals import error

if TYPE_CHECKING:
    from tests.fake_engine.server import FakeEngine


class Api:
    """Health, metrics, models, tokens and adapters of one running server."""

    def __init__(self, engine: "FakeEngine", core: Core) -> None:
        self._engine = engine
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._health),
            web.get("/metrics", self._metrics),
            web.get("/v1/models", self._models),
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

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = (
            self._engine.prompt_ids(body["messages"], body.get("tools") or [])
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
