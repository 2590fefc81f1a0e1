"""One request and its answer: what was asked, which weights answer, which records remain.

Bookkeeping: it does not talk to the engine and writes nothing.
"""

import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from agent.capture import Capture, CapturedChoice
from agent.dialects.dialect import Ask, Reply
from agent.engine_request import parse_json
from agent.placement import Place, Placing
from memory.errors import DenizenError, InvalidRequestError
from memory.types import Call, CallStatus, utc_now

MAX_SESSION_NAME = 200
RECALL = "x-denizen-recall"


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a caller says by header or path."""

    session: str | None
    record: bool
    learn: bool
    retry_key: str | None = None  # the same for every attempt at one request
    is_retry: bool = False  # the client says that it tried before
    recall: bool | None = None  # whether memory may add to the prompt; None: the setting decides

    @classmethod
    def of(cls, headers: Mapping[str, str], session: str | None) -> "Options":
        """Read the request's headers; a session in the path wins over one in a header.

        Raises:
            InvalidRequestError: a switch is neither ``on`` nor ``off``, or a session's name is too
                long.
        """
        session = session or headers.get("x-denizen-session") or None
        if session is not None and len(session) > MAX_SESSION_NAME:
            message = f"a session's name has at most {MAX_SESSION_NAME} characters"
            raise InvalidRequestError(message, param="x-denizen-session")
        return cls(
            session=session,
            record=_switch(headers, "x-denizen-record"),
            learn=_switch(headers, "x-denizen-learn"),
            retry_key=headers.get("idempotency-key") or None,
            is_retry=headers.get("x-stainless-retry-count", "0") != "0",
            recall=_switch(headers, RECALL) if RECALL in headers else None,
        )


def _switch(headers: Mapping[str, str], name: str) -> bool:
    value = headers.get(name, "on").lower()
    if value not in {"on", "off"}:
        raise InvalidRequestError(f"{name} must be on or off", param=name)
    return value == "on"


@dataclass(kw_only=True, slots=True)
class Exchange:
    """One request on its way through the gateway."""

    ask: Ask
    options: Options
    placing: Placing
    adapter: str
    capture: Capture
    reply: Reply
    is_closed: bool = False  # its record has been begun
    recalled: Mapping[str, Any] | None = None  # what memory put into the prompt
    started_at: datetime = field(default_factory=utc_now)
    started: float = field(default_factory=time.perf_counter)

    @property
    def place(self) -> Place:
        """Where the request belongs in the record.

        Raises:
            StoreError: the record cannot be read.
        """
        return self.placing.place

    def settle(self) -> None:
        """Look for the place now."""
        with suppress(DenizenError):  # found again where it is needed, and told there
            _ = self.place

    def absorb(self, raw: bytes) -> bytes:
        """Keep one chunk of the engine; return what the client is told of it, nothing perhaps."""
        chunk = parse_json(raw)
        self.capture.absorb(chunk)
        return b"".join(self.reply.events(chunk))

    def headers(self) -> dict[str, str]:
        """Return the contract's response headers."""
        headers = {"x-denizen-adapter": self.adapter}
        if self.options.record:
            headers["x-denizen-call-id"] = self.call_id
            headers["x-denizen-episode-id"] = self.place.episode.id
        return headers

    @property
    def call_id(self) -> str:
        """The engine's id; one of our own kind where the engine never answered."""
        if self.capture.id is None:
            self.capture.id = f"chatcmpl-{uuid.uuid4().hex}"
        return self.capture.id

    def calls(self, status: CallStatus, error: str | None) -> list[Call]:
        """Return the records of this exchange, one a choice; one even when nothing came."""
        choices = self.capture.choices or {0: CapturedChoice()}
        return [
            self._call(index, choice, status, error) for index, choice in sorted(choices.items())
        ]

    def _call(
        self, index: int, choice: CapturedChoice, status: CallStatus, error: str | None
    ) -> Call:
        return Call(
            id=self.call_id if index == 0 else f"{self.call_id}.{index}",
            episode_id=self.place.episode.id,
            created_at=self.started_at,
            adapter=self.adapter,
            request=self.ask.record,
            message=choice.message(),
            prompt_token_ids=self.capture.prompt_token_ids,
            completion_token_ids=choice.token_ids or None,
            sampler_logprobs=choice.known_logprobs(),
            finish_reason=choice.finish_reason,
            status=status,
            latency_ms=(time.perf_counter() - self.started) * 1000,
            parent_id=self.place.parent_id,
            edge=self.place.edge,
            session=self.options.session,
            usage=self.capture.usage,
            error=error,
            learn=self.options.learn,
            recalled=self.recalled,
        )
