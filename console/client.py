"""The console's HTTP client: finds the running service, asks it, and types its errors.

It knows addresses, keys and the error body; it does not know what the answers mean, nor how to
show them.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeAlias
from urllib.parse import quote

import httpx

from console.errors import NoServiceError, ServiceError

Json: TypeAlias = Any
"""A decoded JSON document of the service; the console reads it, and never writes one back."""

READ_TIMEOUT_S = 600.0
"""Longest silence of a plain request; the slowest compares two versions on all held-out tasks."""

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """One page of a list, as the service sent it.

    Example:
        ``Page(rows=[{"id": "ep_0193-5c"}], next="ep_0193-5c", json={"data": […], …})``
    """

    rows: list[dict[str, Any]]
    next: str | None  # what ``after`` takes for the following page; None on the last one
    json: Json


@dataclass(kw_only=True, slots=True)
class ChatStream:
    """A streamed answer: iterate for its text; the other fields are set by what has come so far."""

    adapter: str | None
    pieces: Iterator[Mapping[str, Any]]
    completion_id: str | None = None
    text: str = field(default="")

    def __iter__(self) -> Iterator[str]:
        for chunk in self.pieces:
            self.completion_id = chunk.get("id") or self.completion_id
            for choice in chunk.get("choices", []):
                piece = (choice.get("delta") or {}).get("content") or ""
                if piece:
                    self.text += piece
                    yield piece


def denizen_home() -> Path:
    """Return ``$DENIZEN_HOME``, or ``~/.denizen``."""
    return Path(os.environ.get("DENIZEN_HOME") or "~/.denizen").expanduser()


def find_service(home: Path) -> str:
    """Return the running service's address: ``$DENIZEN_URL``, else what it wrote into its home.

    Raises:
        NoServiceError: neither is there, or the file cannot be read.
    """
    url = os.environ.get("DENIZEN_URL")
    if url:
        return url.rstrip("/")
    file = home / "service.json"
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["url"]).rstrip("/")
    except FileNotFoundError:
        raise NoServiceError(
            f"no Denizen service at {home}: start it with `denizen serve`, or set DENIZEN_URL"
        ) from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise NoServiceError(
            f"no Denizen service at {home}: {file} cannot be read ({error});"
            " start it with `denizen serve`"
        ) from error


def is_loopback(url: str) -> bool:
    """Say whether an address is this machine's own, which no proxy of the environment can reach."""
    host = httpx.URL(url).host
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class ServiceClient:
    """Asks one service; every failure is a ``ServiceError`` or a ``NoServiceError``.

    The key is ``$DENIZEN_API_KEY`` and travels as ``Authorization: Bearer``.
    """

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        self.url = url
        try:
            self._http = httpx.Client(
                base_url=url,
                headers={"authorization": f"Bearer {api_key}"} if api_key else {},
                timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
                trust_env=not is_loopback(url),
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise NoServiceError(f"no Denizen service at {url!r}: {error}") from error

    @classmethod
    def from_environment(cls) -> Self:
        """Return a client of the service that the environment or the home names."""
        return cls(find_service(denizen_home()), api_key=os.environ.get("DENIZEN_API_KEY"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._http.close()

    def get(self, *path: str, **query: object) -> Json:
        """GET ``/v1/<path>``; each part is quoted, query entries that are None are left out."""
        return self._ask("GET", path, query=query)

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Json:
        """POST ``body`` without its None entries as JSON to ``/v1/<path>``."""
        return self._ask("POST", path, body=body or {})

    def upload(self, *path: str, files: Mapping[str, BinaryIO], fields: Mapping[str, Any]) -> Json:
        """POST files by their names, and ``fields`` without None entries, to ``/v1/<path>``."""
        request = self._http.build_request(
            "POST",
            _path(path),
            files={name: (name, file) for name, file in files.items()},
            data=_without_none(fields),
        )
        return self._decoded(self._send(request))

    def download(self, *path: str, **query: object) -> Iterator[bytes]:
        """GET ``/v1/<path>`` piece by piece, however long it is."""
        params = _without_none(query)
        request = self._http.build_request("GET", _path(path), params=params)
        response = self._send(request, stream=True)
        try:
            if response.is_error:
                response.read()
                raise self._error(response)
            yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise ServiceError(f"{self.url} broke off: {error or type(error).__name__}") from error
        finally:
            response.close()

    def patch(self, *path: str, body: Mapping[str, Any]) -> Json:
        """PATCH ``/v1/<path>`` with ``body`` without its None entries."""
        return self._ask("PATCH", path, body=body)

    def put(self, *path: str, body: Mapping[str, Any]) -> Json:
        """PUT ``/v1/<path>`` with ``body`` without its None entries."""
        return self._ask("PUT", path, body=body)

    def page(self, *path: str, **query: object) -> Page:
        """GET one page of a list."""
        answer = self.get(*path, **query)
        try:
            return Page(rows=answer["data"], next=answer.get("next"), json=answer)
        except (LookupError, TypeError, AttributeError) as error:
            raise ServiceError(f"{self.url} answered {'/'.join(path)} with no list") from error

    def complete(self, body: Mapping[str, Any], *, session: str | None = None) -> Json:
        """Ask for one chat completion as a whole."""
        return self._decoded(self._send(self._chat_request(body, session)))

    def stream_chat(self, body: Mapping[str, Any], *, session: str | None = None) -> ChatStream:
        """Start a streamed chat completion; the request is sent before this returns.

        Raises:
            ServiceError: refused; while iterating: an error event, or an end without ``[DONE]``.
        """
        response = self._send(self._chat_request({**body, "stream": True}, session), stream=True)
        if response.is_error:
            response.read()
            raise self._error(response)
        return ChatStream(
            adapter=response.headers.get("x-denizen-adapter"), pieces=_events(response)
        )

    def _chat_request(self, body: Mapping[str, Any], session: str | None) -> httpx.Request:
        headers = {"x-denizen-session": session} if session else {}
        return self._http.build_request("POST", "/v1/chat/completions", json=body, headers=headers)

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        query: Mapping[str, object] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Json:
        request = self._http.build_request(
            method,
            _path(path),
            params=_without_none(query or {}),
            json=None if body is None else _without_none(body),
        )
        return self._decoded(self._send(request))

    def _decoded(self, response: httpx.Response) -> Json:
        if response.is_error:
            raise self._error(response)
        try:
            return response.json()
        except ValueError as error:
            raise ServiceError(f"{self.url} answered with no JSON: is it Denizen?") from error

    def _send(self, request: httpx.Request, *, stream: bool = False) -> httpx.Response:
        try:
            return self._http.send(request, stream=stream)
        except httpx.ReadTimeout as error:
            raise ServiceError(
                f"{self.url} accepted the request but stayed silent for {READ_TIMEOUT_S:.0f} s"
            ) from error
        except httpx.ConnectError as error:
            raise NoServiceError(
                f"no Denizen service at {self.url}: start it with `denizen serve`"
            ) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServiceError(f"{self.url} broke off: {error or type(error).__name__}") from error

    def _error(self, response: httpx.Response) -> ServiceError:
        """Read OpenAI's error body; anything else is reported as not coming from Denizen."""
        try:
            error = response.json()["error"]
            return ServiceError(
                str(error["message"]), status=response.status_code, code=error.get("code")
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            return ServiceError(
                f"{self.url} answered {response.status_code} without Denizen's error body:"
                " is it a Denizen service?",
                status=response.status_code,
            )


def _path(parts: tuple[str, ...]) -> str:
    """Quote each part; ``""``, ``"."`` and ``".."`` would name another route.

    Raises:
        ServiceError: a part is one of them.
    """
    if strange := [part for part in parts if part in {"", ".", ".."}]:
        raise ServiceError(f"{strange[0]!r} is no id")
    return "/v1/" + "/".join(quote(part, safe="", errors="surrogateescape") for part in parts)


def _without_none(entries: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if value is not None}


def _events(response: httpx.Response) -> Iterator[Mapping[str, Any]]:
    """Yield the chunks of a server-sent event stream up to ``[DONE]``."""
    try:
        for line in response.iter_lines():
            data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
            if data == "[DONE]":
                return
            if data:
                chunk = json.loads(data)
                if "error" in chunk:
                    raise ServiceError(str(chunk["error"].get("message", chunk["error"])))
                yield chunk
    except httpx.HTTPError as error:
        raise ServiceError(f"the answer broke off: {error or type(error).__name__}") from error
    except ValueError as error:
        raise ServiceError(f"the answer holds an event that is no JSON: {error}") from error
    finally:
        response.close()
    raise ServiceError("the answer ended without its closing event: it may be incomplete")
