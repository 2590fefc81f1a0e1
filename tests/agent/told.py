"""What a dialect tells of an answer: an engine's chunks in, a client's events out."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent.capture import Capture
from agent.dialects.dialect import Dialect, Reply
from memory.errors import NotFoundError
from memory.types import Call

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def nothing_recorded(call_id: str) -> Call:
    raise NotFoundError(f"there is no completion {call_id!r}")


def new_reply(
    dialect: Dialect, body: dict[str, Any], find_call: Callable[[str], Call] = nothing_recorded
) -> tuple[Reply, Capture]:
    """Return how a request is to be answered, and the capture that belongs to it."""
    capture = Capture()
    return dialect.read(body, find_call).reply(capture), capture


def choice(part: str, said: Mapping[str, Any], finish: str | None, **fields: Any) -> dict[str, Any]:
    """Return an engine's answer, or one chunk of it, with its only choice."""
    told = {"index": 0, part: said, "finish_reason": finish, **fields}
    return {"id": "chatcmpl-1", "model": "base", "choices": [told]}


def chunks(*deltas: Mapping[str, Any], finish: str = "stop", **fields: Any) -> list[dict[str, Any]]:
    """Return a stream: the deltas, the last one, and the usage."""
    first = choice("delta", {"role": "assistant", "content": ""}, None)
    first["prompt_token_ids"] = [1, 2, 3]
    spoken = [choice("delta", delta, None, token_ids=[5]) for delta in deltas]
    last = choice("delta", {}, finish, **fields)
    return [first, *spoken, last, {"id": "chatcmpl-1", "choices": [], "usage": USAGE}]


def whole(message: Mapping[str, Any], finish: str = "stop", **fields: Any) -> dict[str, Any]:
    """Return an answer that is not streamed."""
    spoken = choice("message", {"role": "assistant", **message}, finish, **fields)
    return spoken | {"prompt_token_ids": [1, 2, 3], "usage": USAGE}


def body_of(
    dialect: Dialect, body: dict[str, Any], answer: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Return what the client of a request gets for an answer."""
    reply, capture = new_reply(dialect, body, **options)
    capture.absorb(answer)
    return reply.body(answer)


def events_of(
    dialect: Dialect, body: dict[str, Any], stream: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the events that the client of a request gets for a stream; ``[DONE]`` is left out."""
    reply, capture = new_reply(dialect, body)
    sent: list[bytes] = []
    for one in stream:
        capture.absorb(one)
        sent += reply.events(one)
    return read_events(b"".join([*sent, *reply.end()]).decode())


def read_events(text: str) -> list[dict[str, Any]]:
    """Read server-sent events; where one has a name, its body says the same."""
    found = []
    for one in text.strip().split("\n\n"):
        *heading, data = one.split("\n")
        if data == "data: [DONE]":
            continue
        found.append(json.loads(data.removeprefix("data: ")))
        assert not heading or heading == [f"event: {found[-1]['type']}"]
    return found
