"""One request to an engine, and its answer: the events of a stream, the JSON, what went wrong.

The engine's failures become the errors of ``agent/errors.py`` here, once.
"""

from types import TracebackType
from typing import Any

import orjson

from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from agent.http_answer import Answer, BrokenAnswerError, ClosedError
from agent.upstream import ConnectError, Upstream


class EngineRequest:
    """One request that is sent when the block is entered, and its successful answer.

    Failures get their names here, those while the answer is read in the block as well.
    """

    def __init__(self, upstream: Upstream, method: str, path: str, body: bytes | None) -> None:
        self._path = path
        self._sending = upstream.send(method, path, body)

    async def __aenter__(self) -> Answer:
        try:
            answer = self._answer = await self._sending
            if answer.status >= 400:
                refusal = _refusal(answer.status, await answer.read())
                answer.release()
                raise refusal
        except OSError as error:
            raise self._named(error) from error
        return answer

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._answer.release()  # closes the connection where the answer has not ended
        if isinstance(error, OSError):
            raise self._named(error) from error

    def _named(self, error: Exception) -> EngineError | EngineUnavailableError:
        if isinstance(error, ConnectError):
            return EngineUnavailableError(f"the engine does not answer: {error}")
        if isinstance(error, ClosedError):
            return EngineUnavailableError(f"the engine closed the connection: {error}")
        if isinstance(error, BrokenAnswerError):
            return EngineError(f"the engine's answer broke off: {error}")
        return EngineError(f"the engine's answer to {self._path} cannot be read: {error}")


class Events:
    """Server-sent events as they arrive; several ``data:`` lines are joined by newlines.

    The bytes are split at line ends only, so a chunk border may fall anywhere: in a line end, in a
    character. An event that the end of the stream cut off is never returned.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._lines: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take some bytes; return the data of each event that they complete."""
        *complete, self._pending = (self._pending + chunk).split(b"\n")
        events = []
        for line in complete:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._lines = []
        return events


def _refusal(
    status: int, content: bytes
) -> EngineError | EngineRejectedError | EngineUnavailableError:
    """Turn the engine's error answer into the error that says whose fault it is."""
    message = message_of(content)
    if status in {401, 403}:
        return EngineError(f"the engine refused the service's key ({status}): set engine.api_key")
    if status == 503:
        return EngineUnavailableError(f"the engine is not ready: {message}")
    if status >= 500:
        return EngineError(f"the engine failed ({status}): {message}")
    detail = _error_object(content)
    param = detail.get("param")
    return EngineRejectedError(
        message, status=status, param=param if isinstance(param, str) else None
    )


def message_of(content: bytes) -> str:
    """Return what an error answer of the engine says."""
    message = _error_object(content).get("message")
    return str(message) if message else content[:500].decode(errors="replace")


def _error_object(content: bytes) -> dict[str, Any]:
    """Return ``error`` of an OpenAI error body, or an empty object."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) else {}


def parse_json(content: bytes) -> dict[str, Any]:
    """Read an answer or a chunk of an engine.

    Raises:
        EngineError: it is no JSON object.
    """
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"the engine answered with something that is no JSON: {error}") from error
    if not isinstance(answer, dict):
        raise EngineError("the engine answered with JSON that is no object")
    return answer
