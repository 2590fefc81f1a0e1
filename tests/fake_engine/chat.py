"""The chat route: answers at the pace, and with the faults, that are ordered."""

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fake_engine.answers import ChatAnswer
from tests.fake_engine.choices import Choice
from tests.fake_engine.core import Core
from tests.fake_engine.faults import Switches
from tests.fake_engine.refusals import refusal

if TYPE_CHECKING:
    from tests.fake_engine.server import FakeEngine


class Chat:
    """``POST /v1/chat/completions`` of one running server."""

    def __init__(self, engine: "FakeEngine", core: Core) -> None:
        self._engine = engine
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/chat/completions", self._chat)]

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        refused = refusal(self._engine, body)
        if refused is not None:
            return refused
        with self._core.running():
            await asyncio.sleep(self._engine.switches.delay_s)
            answer = self._answer(body)
            if body.get("stream"):
                return await self._stream(request, answer)
            await self._core.compute(num_prompt=len(answer.prompt_ids))
            for _ in range(answer.num_tokens):
                await self._core.compute(1)
            return web.json_response(answer.whole())

    def _answer(self, body: Mapping[str, Any]) -> ChatAnswer:
        engine = self._engine
        return ChatAnswer(
            id=f"chatcmpl-{uuid.uuid4().hex[:16]}",
            model=body.get("model", engine.base_name),
            body=body,
            prompt_ids=engine.prompt_ids(body.get("messages") or [], body.get("tools") or []),
            choices=[self._choice(body, index) for index in range(body.get("n") or 1)],
        )

    def _choice(self, body: Mapping[str, Any], index: int) -> Choice:
        weights = self._engine.weights_of(body.get("model", self._engine.base_name))
        text = self._engine.answer(weights, body.get("messages") or [])
        if body.get("seed") is not None:
            text += f" [{body['seed']}]"
        if index:
            text += f" ({index})"
        return Choice(body, index, text, self._engine.tokenize(text), weights)

    async def _stream(self, request: web.Request, answer: ChatAnswer) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        switches = self._engine.switches
        if switches.raw_chunks is not None:
            for piece in switches.raw_chunks:
                await response.write(piece.encode("latin-1"))
                await asyncio.sleep(0.002)
            return response
        await self._core.compute(num_prompt=len(answer.prompt_ids))
        num_sent = 0
        for num_tokens, chunk in answer.chunks(switches.chunk_tokens):
            await asyncio.sleep(switches.chunk_delay_s)
            await self._core.compute(num_tokens)
            if chunk is None:
                continue
            if await breaks_off(switches, request, response, num_sent):
                break
            await response.write(event(chunk))
            num_sent += 1
        await response.write(b"data: [DONE]\n\n")
        return response


async def breaks_off(
    switches: Switches, request: web.Request, response: web.StreamResponse, num_sent: int
) -> bool:
    """Let a stream go wrong after ``num_sent`` chunks if that is ordered; True: it ends."""
    if num_sent == switches.cut_after_chunks:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError("cut by order of the test")
    if num_sent == switches.stall_after_chunks:
        await asyncio.Event().wait()
    if num_sent == switches.error_after_chunks:
        failure = {"message": "ordered by the test", "type": "InternalServerError"}
        await response.write(event({"error": {**failure, "param": None, "code": 500}}))
        return True
    return False


def event(content: Mapping[str, Any]) -> bytes:
    """Return one server-sent event."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return f"data: {text}\n\n".encode()
