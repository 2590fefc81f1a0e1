"""OpenAI's chat completions: the engine's own dialect, passed through.

A client sees exactly what it would have seen had the gateway not asked for token ids,
log-probabilities and usage.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from agent.chat_request import ChatRequest, Metadata, check_format, upstream_body
from agent.dialects.dialect import Ask, FindCall
from agent.event_stream import DONE, event
from agent.policy import CHAT_PATH
from memory.errors import DenizenError
from memory.wire import parse_body


class Chat:
    """``POST /v1/chat/completions``."""

    def read(self, body: dict[str, Any], find_call: FindCall) -> Ask:
        """Read a request."""
        chat = parse_body(ChatRequest, body)
        check_format(body, param="response_format")
        return Ask(
            model=chat.model,
            path=CHAT_PATH,
            body=upstream_body(body),
            messages=body["messages"],
            record={key: value for key, value in body.items() if key != "metadata"},
            stream=bool(chat.stream),
            reply=lambda _: OpenAiReply(
                model=chat.model,
                asked_logprobs=bool(chat.logprobs),
                asked_token_ids=bool(chat.return_token_ids),
                asked_usage=bool((chat.stream_options or {}).get("include_usage")),
            ),
            metadata=chat.metadata or Metadata(),
            user=chat.user,
        )

    def error(self, error: DenizenError) -> dict[str, Any]:
        """Return OpenAI's error body."""
        return error.body()


class OpenAiReply:
    """What a client sees of the engine's own words.

    Args:
        model: the name the client used; the engine's own name never reaches it.
        asked_logprobs: the client asked for log-probabilities itself.
        asked_token_ids: the client asked for token ids itself.
        asked_usage: the client wants a last chunk with the usage.
    """

    def __init__(
        self, *, model: str, asked_logprobs: bool, asked_token_ids: bool, asked_usage: bool
    ) -> None:
        self._model = model
        self._asked_logprobs = asked_logprobs
        self._asked_token_ids = asked_token_ids
        self._asked_usage = asked_usage
        self._usage: dict[str, Any] | None = None  # the chunk that tells of it

    def body(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's answer without what the client did not ask for."""
        return self._view(answer)

    def events(self, chunk: dict[str, Any]) -> Iterable[bytes]:
        """Pass a chunk on; one without choices waits for the end, wherever it stands."""
        if not chunk.get("choices"):
            self._usage = chunk if chunk.get("usage") else self._usage
            return ()
        return () if self._is_capture_only(chunk) else (event(self._view(chunk)),)

    def end(self) -> Iterable[bytes]:
        """Tell the usage if it was asked for, and that this was all."""
        if self._asked_usage and self._usage is not None:
            yield event(self._view(self._usage))
        yield DONE

    def failure(self, error: DenizenError) -> Iterable[bytes]:
        """Tell of the error; no ``[DONE]`` follows."""
        return (event(error.body()),)

    def _is_capture_only(self, chunk: Mapping[str, Any]) -> bool:
        """Say whether a chunk exists only because token ids were asked for."""
        if self._asked_logprobs or self._asked_token_ids:
            return False
        return all(
            choice.get("finish_reason") is None
            and not any((choice.get("delta") or {}).values())
            and not choice.get("text")
            for choice in chunk["choices"]
        )

    def _view(self, body: dict[str, Any]) -> dict[str, Any]:
        body["model"] = self._model
        for holder in (body, *(body.get("choices") or ())):
            if not self._asked_token_ids:
                for key in ("prompt_token_ids", "token_ids"):
                    if key in holder:
                        holder[key] = None
        if not self._asked_logprobs:
            for choice in body.get("choices") or ():
                choice["logprobs"] = None
        return body
