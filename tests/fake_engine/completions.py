"""The completions route: continues a prompt, whole or in chunks, in vLLM's shapes."""

import asyncio
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tests.fake_engine.chat import breaks_off, event
from tests.fake_engine.choices import Choice
from tests.fake_engine.core import Core
from tests.fake_engine.refusals import refusal
from tests.fake_engine.tokens import logprob

if TYPE_CHECKING:
    from tests.fake_engine.server import FakeEngine


class Completions:
    """``POST /v1/completions`` of one running server."""

    def __init__(self, engine: "FakeEngine", core: Core) -> None:
        self._engine = engine
        self._core = core

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self._completions)]

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        refused = refusal(self._engine, body)
        if refused is not None:
            return refused
        answer = CompletionAnswer(self._engine, body)
        with self._core.running():
            await asyncio.sleep(self._engine.switches.delay_s)
            await self._core.compute(num_prompt=len(answer.prompt_ids))
            if body.get("stream"):
                return await self._stream(request, answer)
            for _ in range(answer.num_tokens):
                await self._core.compute(1)
        return web.json_response(answer.whole())

    async def _stream(self, request: web.Request, answer: "CompletionAnswer") -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        switches = self._engine.switches
        for num_sent, (num_tokens, chunk) in enumerate(answer.chunks(switches.chunk_tokens)):
            await asyncio.sleep(switches.chunk_delay_s)
            await self._core.compute(num_tokens)
            if await breaks_off(switches, request, response, num_sent):
                break
            await response.write(event(chunk))
        await response.write(b"data: [DONE]\n\n")
        return response


class CompletionAnswer:
    """An answer before it is sent."""

    def __init__(self, engine: "FakeEngine", body: Mapping[str, Any]) -> None:
        self._body = body
        self._weights = engine.weights_of(body["model"])
        prompt = body["prompt"]
        is_text = isinstance(prompt, str)
        self.prompt_ids: Sequence[int] = engine.tokenize(prompt) if is_text else prompt
        said = [{"role": "user", "content": prompt if is_text else f"{len(prompt)} tokens"}]
        text = engine.answer(self._weights, said)
        texts = [text + (f" ({index})" if index else "") for index in range(body.get("n") or 1)]
        self._choices = [
            Choice(body, index, one, engine.tokenize(one), self._weights)
            for index, one in enumerate(texts)
        ]
        self.num_tokens = sum(len(choice.token_ids) for choice in self._choices)
        self._id = f"cmpl-{uuid.uuid4().hex[:16]}"

    def whole(self) -> dict[str, Any]:
        """Return the answer that is not streamed."""
        choices = [
            {
                **self._choice(choice, 0, len(choice.token_ids), is_first=True),
                "prompt_logprobs": self._prompt_logprobs(),
                "routed_experts": None,
            }
            for choice in self._choices
        ]
        return self._heading() | {"choices": choices, "usage": self._usage()}

    def chunks(self, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield how many tokens are computed for a chunk, and the chunk."""
        for choice in self._choices:
            for start in range(0, len(choice.token_ids), size):
                end = min(start + size, len(choice.token_ids))
                told = self._choice(choice, start, end, is_first=start == 0)
                yield end - start, self._heading() | {"choices": [told]}
        if (self._body.get("stream_options") or {}).get("include_usage"):
            yield 0, self._heading() | {"choices": [], "usage": self._usage()}

    def _choice(self, choice: Choice, start: int, end: int, *, is_first: bool) -> dict[str, Any]:
        is_last = end == len(choice.token_ids)
        with_ids = bool(self._body.get("return_token_ids"))
        return {
            "index": choice.index,
            "text": "".join(choice.pieces[start:end]),
            "logprobs": self._logprobs(choice, start, end),
            "finish_reason": choice.finish_reason if is_last else None,
            "stop_reason": None,
            "prompt_token_ids": list(self.prompt_ids) if with_ids and is_first else None,
            "token_ids": choice.token_ids[start:end] if with_ids else None,
        }

    def _logprobs(self, choice: Choice, start: int, end: int) -> dict[str, Any] | None:
        if self._body.get("logprobs") is None:
            return None
        known, texts = choice.logprobs[start:end], choice.pieces[start:end]
        alternatives = [{text: value} for text, value in zip(texts, known, strict=True)]
        told = {"token_logprobs": known, "tokens": texts, "top_logprobs": alternatives}
        return {"text_offset": [0] * len(known), **told}

    def _prompt_logprobs(self) -> list[Any] | None:
        if self._body.get("prompt_logprobs") is None:
            return None
        entries: list[Any] = [None]
        for position, token in enumerate(self.prompt_ids[1:], start=1):
            value = logprob(self._weights, position, token)
            entries.append({str(token): {"logprob": value, "rank": 1, "decoded_token": "?"}})
        return entries

    def _heading(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._body["model"],
        }

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": len(self.prompt_ids),
            "total_tokens": len(self.prompt_ids) + self.num_tokens,
            "completion_tokens": self.num_tokens,
        }
