"""What the gateway knows of a dialect: it reads a request, and tells the answer in its own words.

Every dialect but ``completions`` becomes one chat completion of the engine, which alone reports
token ids and log-probabilities; so the record is equally exact whatever was spoken.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from agent.capture import Capture
from agent.chat_request import Metadata
from memory.errors import DenizenError
from memory.types import Call, Message

FindCall: TypeAlias = Callable[[str], Call]
"""Returns a recorded call; raises ``NotFoundError`` where there is none of this id."""


class Reply(Protocol):
    """Tells one client what the engine answers. The capture has absorbed what it is given."""

    def body(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the whole answer that is not streamed."""

    def events(self, chunk: dict[str, Any]) -> Iterable[bytes]:
        """Return the events that tell of one chunk; none where the client has nothing to see."""

    def end(self) -> Iterable[bytes]:
        """Return the events that end a complete stream; sent when the record is kept."""

    def failure(self, error: DenizenError) -> Iterable[bytes]:
        """Return the events that end a stream which broke off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request in the engine's terms.

    Example:
        ``Ask(model="denizen", body={"messages": [{"role": "user", "content": "3 * 4 = ?"}],
        "max_tokens": 8, "return_token_ids": True, "logprobs": True}, stream=False, …)``
    """

    model: str  # as the client named it
    path: str  # the engine's route
    body: dict[str, Any]  # for the engine; its model's name is still to come
    messages: list[Message]  # the conversation so far, by which its place in the record is found
    record: Mapping[str, Any]  # kept as the call's request
    stream: bool
    reply: Callable[[Capture], Reply]
    metadata: Metadata
    user: str | None = None
    continues: Call | None = None  # named by the client, not found by its messages


class Dialect(Protocol):
    """One wire form."""

    def read(self, body: dict[str, Any], find_call: FindCall) -> Ask:
        """Read a request.

        Raises:
            InvalidRequestError: a parameter is wrong or not supported; ``param`` names it.
        """

    def error(self, error: DenizenError) -> dict[str, Any]:
        """Return the body of an answer that is an error."""


def with_usage(chat: dict[str, Any]) -> dict[str, Any]:
    """Return a chat completion that tells its usage also when it is streamed."""
    return chat | {"stream_options": {"include_usage": True}} if chat.get("stream") else chat


def given(**fields: Any) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
