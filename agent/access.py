"""Who may ask for what, and how large a request may be. Stands in front of every route.

Keys are compared in constant time and never logged; settings may hold their hashes instead. It does
not know what the routes do.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent.dialects.errors import body_at
from memory.errors import AuthenticationError, DenizenError, ForbiddenError, TooLargeError
from memory.tenants import ANYBODY, TENANT_NAME, Caller

OPEN_PATHS = {"/health", "/ready"}
# Whatever moves the pointer, spends the machine, or decides what is learned.
ADMIN_PREFIXES = ("/v1/adapters", "/v1/cycles", "/v1/skills", "/v1/tasks", "/v1/erase")
# What is learned is learned of all tenants, and its reports name their skills and tasks.
SHARED_PREFIXES = ("/v1/adapters", "/v1/cycles", "/v1/erasures")
UPLOAD = ("POST", "/v1/adapters")
LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}
DRAIN_BYTES = 64 * 2**20
READ_METHODS = {"GET", "HEAD", "OPTIONS"}
HASHED = "sha256:"
_HASHED_FORM = re.compile(r"sha256:[0-9a-f]{64}")


class AuthConfig(BaseModel):
    """Settings of ``[auth]``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    user_keys: tuple[str, ...] = ()
    """Keys that may chat, read and give feedback. Empty together with ``admin_keys``: no key is
    asked for. Each stands here as it is, or as ``sha256:`` and its SHA-256 in 64 lowercase
    hexadecimal digits, from which nobody can read it (``denizen key`` makes both). Of a hashed key
    the service does not know how it looks in a text, so that redaction finds it by its form only.
    """
    admin_keys: tuple[str, ...] = ()
    """Keys that may also review, promote, roll back, delete and start cycles, and see the records
    of all tenants.
    """
    tenants: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    """Name -> user keys that belong to this tenant: ``acme = ["KEY"]``. Its conversations, skills,
    tasks and feedback are kept apart from everybody else's, for whom they do not exist; so is what
    memory recalls. ``user_keys`` and ``admin_keys`` belong to the default tenant, which has no
    name. The weights are shared by all: see ``privacy.learn_from``. With tenants, only admin keys
    look at adapters, cycles and erasures.
    """

    @model_validator(mode="after")
    def _names_and_keys_are_clear(self) -> Self:
        if wrong := [name for name in self.tenants if not TENANT_NAME.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} is no tenant's name: letters, digits, _ . and -")
        if keyless := [name for name, keys in self.tenants.items() if not keys]:
            raise ValueError(f"tenant {keyless[0]!r} has no key: nobody could speak for it")
        keys = self.all_keys
        if not all(key.strip() for key in keys):
            raise ValueError("a key is empty: whoever sends none would have it")
        if any(key.startswith(HASHED) and not _HASHED_FORM.fullmatch(key) for key in keys):
            raise ValueError("a key that begins with sha256: needs 64 lowercase hexadecimal digits")
        if len(keys) > len({_hashed(key) for key in keys}):
            raise ValueError("a key is given twice; it can belong to one tenant only")
        return self

    def caller_of(self, key: bytes) -> Caller | None:
        """Return who sends a key; None: nobody is known by it."""
        if _matches(key, self.admin_keys):
            return Caller()
        for name, keys in self.tenants.items():
            if _matches(key, keys):
                return Caller(tenant=name, is_admin=False)
        return Caller(is_admin=False) if _matches(key, self.user_keys) else None

    @property
    def all_keys(self) -> list[str]:
        """Every key."""
        theirs = [key for keys in self.tenants.values() for key in keys]
        return [*self.user_keys, *self.admin_keys, *theirs]


class AccessMiddleware:
    """Refuses what has no right key or is too large, before any work is done."""

    def __init__(
        self, app: ASGIApp, *, auth: AuthConfig, max_body_bytes: int, max_upload_bytes: int
    ) -> None:
        """Stand in front of ``app``.

        Args:
            app: what answers.
            auth: the keys.
            max_body_bytes: of any request but an upload (server.max_body_mib).
            max_upload_bytes: of an adapter's import; follows from the base model and
                engine.max_lora_rank.
        """
        self._app = app
        self._auth = auth
        self._max_body_bytes = max_body_bytes
        self._max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            scope.setdefault("state", {})["caller"] = self._check_key(scope, headers)
            limit = self._limit(scope)
            limit.check(_length(headers))
            await self._app(scope, limit.counted(receive), send)
        except (AuthenticationError, ForbiddenError, TooLargeError) as error:
            await _drain(receive)
            await send_error(send, error, body_at(scope["path"], error))

    def _check_key(self, scope: Scope, headers: dict[bytes, bytes]) -> Caller:
        if scope["path"] in OPEN_PATHS:
            return ANYBODY
        if not self._auth.all_keys:
            _check_origin(scope, headers)
            return ANYBODY
        caller = self._auth.caller_of(_key_of(headers))
        if caller is None:
            raise AuthenticationError("a valid API key is needed: send Authorization: Bearer KEY")
        path, changes = scope["path"], scope["method"] not in READ_METHODS
        is_for_admins = path.startswith(ADMIN_PREFIXES) or scope["method"] == "DELETE"
        is_shared = bool(self._auth.tenants) and path.startswith(SHARED_PREFIXES)
        if not caller.is_admin and (is_shared or (changes and is_for_admins)):
            raise ForbiddenError("this needs an admin key")
        return caller

    def _limit(self, scope: Scope) -> "BodyLimit":
        if (scope["method"], scope["path"]) == UPLOAD:
            return BodyLimit(self._max_upload_bytes, "engine.max_lora_rank bounds an adapter")
        return BodyLimit(self._max_body_bytes, "server.max_body_mib")


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """How large one body may be, and the setting that says so."""

    num_bytes: int
    source: str

    def check(self, num_bytes: int) -> None:
        """Refuse what is larger.

        Raises:
            TooLargeError: names the limit and the setting behind it.
        """
        if num_bytes > self.num_bytes:
            raise TooLargeError(f"the body is larger than {self.num_bytes} bytes ({self.source})")

    def counted(self, receive: Receive) -> Receive:
        """Count a body that comes without an honest length."""
        num_bytes = 0

        async def counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            self.check(num_bytes)
            return message

        return counted


def _length(headers: dict[bytes, bytes]) -> int:
    length = headers.get(b"content-length", b"0")
    return int(length) if length.isdigit() else 0


def _check_origin(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Keep web pages of elsewhere, which a browser lets post to this machine, from changing things.

    Only matters where no key is asked for; programs send no ``Origin``.
    """
    origin = headers.get(b"origin")
    if origin is None or scope["method"] in READ_METHODS:
        return
    if urlsplit(origin.decode("latin-1")).hostname not in LOOPBACK_HOSTS:
        raise ForbiddenError("a web page of another site may not change anything here")


async def _drain(receive: Receive) -> None:
    """Read the rest of a refused body and drop it, up to a bound.

    A client that is still sending when the connection closes may never see the answer.
    """
    num_bytes, more = 0, True
    while more and num_bytes < DRAIN_BYTES:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


async def send_error(send: Send, error: DenizenError, told: dict[str, Any]) -> None:
    """Answer with an error's own status, and the body that tells of it."""
    body = orjson.dumps(told)
    headers: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
    headers += [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    start: dict[str, Any] = {"type": "http.response.start", "status": error.status}
    await send(start | {"headers": headers})
    await send({"type": "http.response.body", "body": body})


def _key_of(headers: dict[bytes, bytes]) -> bytes:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")


def _matches(key: bytes, known: Iterable[str]) -> bool:
    sent = HASHED + hashlib.sha256(key).hexdigest()
    return any(hmac.compare_digest(sent, _hashed(candidate)) for candidate in known)


def _hashed(key: str) -> str:
    """Return a key of the settings as ``sha256:HEX``."""
    return key if key.startswith(HASHED) else HASHED + hashlib.sha256(key.encode()).hexdigest()
