"""The client of one vLLM server: chat, prompt log-probabilities, and adapters by name.

Answers are passed on as the engine gave them. Which model name to ask for, what to keep of an
answer and what a client may see are decided elsewhere.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from agent.engine_request import EngineRequest, Events, message_of, parse_json
from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from agent.upstream import Upstream

ADMIN_TIMEOUT_S = 60.0
"""A load takes 30 to 40 ms on an idle engine and waits for the running step on a busy one."""
HEALTH_TIMEOUT_S = 5.0

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"

_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One name that the engine answers to."""

    name: str
    root: str | None  # the folder or hub name of its weights, as the engine sees it
    parent: str | None  # an adapter's base model; None for a base model


class PolicyClient:
    """One engine, by URL.

    Example:
        ``client = PolicyClient("http://127.0.0.1:8531", api_key="…")``, then
        ``await client.chat({"model": "base", "messages": [{"role": "user", "content": "Hi"}]})``.

    Every method raises ``EngineUnavailableError`` when no connection can be made,
    ``EngineRejectedError`` with the engine's status and message on a 4xx, and ``EngineError`` on
    anything else that is not an answer. It opens its connections at first use and belongs to the
    event loop of that moment.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._upstream = Upstream(self.base_url, headers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; the client can be used again afterwards."""
        self._upstream.close()

    async def served(self) -> list[ServedModel]:
        """Return what the engine answers to: the base model, then the loaded adapters."""
        content = await self._read(ADMIN_TIMEOUT_S, "GET", "/v1/models")
        entries = parse_json(content).get("data")
        try:
            return [
                ServedModel(str(entry["id"]), entry.get("root"), entry.get("parent"))
                for entry in entries or []
            ]
        except (AttributeError, KeyError, TypeError) as error:
            raise EngineError(f"the engine's list of models is malformed: {error!r}") from error

    async def models(self) -> list[str]:
        """Return the names that the engine answers to, the base model's first."""
        return [model.name for model in await self.served()]

    async def base_root(self) -> str | None:
        """Return the folder or hub name of the engine's base model, or None if it does not say."""
        return next((model.root for model in await self.served() if model.parent is None), None)

    async def chat(self, body: Mapping[str, Any], path: str = CHAT_PATH) -> dict[str, Any]:
        """Return the engine's JSON answer to a completion that is not streamed."""
        return await self._post_json(path, body)

    async def stream(self, body: Mapping[str, Any], path: str = CHAT_PATH) -> AsyncIterator[bytes]:
        """Yield the data of each server-sent event of a streamed completion, as it arrives.

        The events do not depend on how the network cut them. ``[DONE]`` is not yielded: the
        iterator ends with it. Closing the iterator closes the connection, by which the engine stops
        computing.

        Raises:
            EngineError: the stream ended without ``[DONE]``, or the engine reported an error in it.
        """
        async with self._request("POST", path, body) as response:
            events = Events()
            async for chunk in response.chunks():
                for data in events.feed(chunk):
                    if data == _DONE:
                        return
                    if data.startswith(b'{"error"'):
                        raise EngineError(f"the engine broke off its answer: {message_of(data)}")
                    yield data
        raise EngineError("the engine's stream ended before its answer was complete")

    async def count_tokens(self, body: Mapping[str, Any]) -> int:
        """Return how many tokens a conversation's prompt has.

        Raises:
            EngineError: the engine does not say.
        """
        answer = await self._post_json("/tokenize", body)
        count = answer.get("count")
        if not isinstance(count, int):
            raise EngineError(f"the engine counted no tokens: {answer!r:.200}")
        return count

    async def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        """Return the token ids of a conversation, as the chat template writes it.

        Raises:
            EngineError: the engine does not say.
        """
        tokens = (await self._post_json("/tokenize", body)).get("tokens")
        if not isinstance(tokens, list):
            raise EngineError(f"the engine gave no token ids: {tokens!r:.200}")
        return tokens

    async def prompt_logprobs(self, model: str, token_ids: list[int]) -> list[float | None]:
        """Return the log-probability of each prompt token; [T], the first is None.

        Raises:
            EngineError: the answer does not hold one entry per token.
        """
        body = {"model": model, "prompt": token_ids, "max_tokens": 1, "prompt_logprobs": 0}
        answer = await self._post_json(COMPLETIONS_PATH, body)
        try:
            entries = answer["choices"][0]["prompt_logprobs"]
            return [
                None if entry is None else float(entry[str(token)]["logprob"])
                for token, entry in zip(token_ids, entries, strict=True)
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(
                f"the engine reported no usable prompt_logprobs: {error!r}"
            ) from error

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load the adapter folder at ``path``, as the engine sees the file system, under ``name``.

        Raises:
            EngineRejectedError: the name is taken (400) or the folder is missing (404).
            EngineError: the engine could not read the adapter (rank, shapes, truncated file).
        """
        await self._admin("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def unload_adapter(self, name: str) -> None:
        """Unload the adapter ``name``.

        Raises:
            EngineRejectedError: the engine does not have it (404).
        """
        await self._admin("/v1/unload_lora_adapter", {"lora_name": name})

    async def health(self) -> bool:
        """Say whether the engine answers its health check within ``HEALTH_TIMEOUT_S``."""
        try:
            await self._read(HEALTH_TIMEOUT_S, "GET", "/health")
            return True
        except (EngineError, EngineUnavailableError, EngineRejectedError):
            return False

    async def makes_progress(self, model: str, timeout_s: float) -> bool:
        """Say whether the engine computes, which its health check does not show.

        It does when it answers one token in time, or is so busy that this one has to wait but
        the tokens of other requests come.
        """
        hello = [{"role": "user", "content": "Hello"}]
        try:
            before = await self._num_tokens()
            try:
                async with asyncio.timeout(timeout_s):
                    await self.chat({"model": model, "messages": hello, "max_tokens": 1})
                return True
            except TimeoutError:
                return await self._num_tokens() > before
        except (EngineError, EngineUnavailableError, EngineRejectedError):
            return False

    async def _num_tokens(self) -> float:
        """Return how many tokens the engine has read and written since it started."""
        text = (await self._read(HEALTH_TIMEOUT_S, "GET", "/metrics")).decode(errors="replace")
        counters = r"^vllm:(?:prompt|generation)_tokens_total\S* (\S+)$"
        return sum(float(count) for count in re.findall(counters, text, re.MULTILINE))

    async def _admin(self, path: str, body: Mapping[str, Any]) -> None:
        await self._read(ADMIN_TIMEOUT_S, "POST", path, body)

    async def _read(
        self, timeout_s: float, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> bytes:
        """Return the body of an answer that comes in time."""
        try:
            async with asyncio.timeout(timeout_s), self._request(method, path, body) as answer:
                return await answer.read()
        except TimeoutError as error:
            raise EngineError(f"the engine did not answer {path} in time") from error

    async def _post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        async with self._request("POST", path, body) as response:
            content = await response.read()
        return parse_json(content)

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> EngineRequest:
        sent = None if body is None else orjson.dumps(body)
        return EngineRequest(self._upstream, method, path, sent)
