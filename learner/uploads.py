"""An adapter on its way in: a multipart body, written into a folder while it arrives.

The files are known by three fixed names, so that nothing a client calls them reaches the file
system. It does not know what the files must hold, nor how large a body may be.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from learner.adapter_files import removed_on_failure
from learner.adapter_format import CONFIG_NAME, MANIFEST_NAME
from learner.adapter_weights import WEIGHTS_NAME
from memory.errors import InvalidRequestError

REQUIRED = {WEIGHTS_NAME, CONFIG_NAME}
REASON = "reason"
NAMES = (WEIGHTS_NAME, CONFIG_NAME, MANIFEST_NAME, REASON)
MAX_REASON_BYTES = 8_000
BLOCK_BYTES = 1 << 20
"""What is parsed and written at once, in a thread: a slow disk must not hold up other answers."""

HOW_TO = (
    f"send multipart/form-data with the parts {WEIGHTS_NAME} and {CONFIG_NAME}, and perhaps "
    f"{MANIFEST_NAME} and {REASON}"
)


async def receive(content_type: str, body: AsyncIterator[bytes], folder: Path) -> str | None:
    """Write the files of a multipart body into ``folder``, which is removed when this fails.

    A part is known by its field name, or else by its file name. A body that is refused is read to
    its end: a client that is still sending would not see the answer.

    Args:
        content_type: the request's header, with the boundary.
        body: as it arrives.
        folder: exists and is empty.

    Returns:
        The field ``reason``, if it was sent.

    Raises:
        InvalidRequestError: it is no such body, breaks off, or holds other parts than the known.
        UnavailableError: the disk is full.
    """
    with removed_on_failure(folder):
        try:
            parts = _Parts(content_type, folder)
        except InvalidRequestError:
            async for _ in body:
                pass
            raise
        pending = bytearray()
        try:
            async for chunk in body:
                pending += chunk
                if len(pending) >= BLOCK_BYTES:
                    await asyncio.to_thread(parts.feed, bytes(pending))
                    pending.clear()
            await asyncio.to_thread(parts.feed, bytes(pending))
        except ClientDisconnect as error:
            raise InvalidRequestError("the upload broke off") from error
        finally:
            parts.close()
        return parts.finish()


class _Parts:
    """Takes the body in blocks, and writes each part where it belongs."""

    def __init__(self, content_type: str, folder: Path) -> None:
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise InvalidRequestError(f"expected an adapter: {HOW_TO}")
        try:
            self._parser = MultipartParser(
                options[b"boundary"],
                {
                    "on_part_begin": self._begin,
                    "on_header_field": self._add_to_field,
                    "on_header_value": self._add_to_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._open,
                    "on_part_data": self._take,
                    "on_part_end": self.close,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise InvalidRequestError(f"the body is no multipart/form-data: {error}") from error
        self._folder = folder
        self._failure: Exception | None = None
        self._is_complete = False
        self._seen: set[str] = set()
        self._reason = bytearray()
        self._file: BinaryIO | None = None
        self._write: Callable[[bytes], object] = self._add_to_reason

    def feed(self, block: bytes) -> None:
        """Parse a block; after a failure the rest is passed over."""
        if self._failure is not None:
            return
        try:
            self._parser.write(block)
        except FormParserError as error:
            self._failure = InvalidRequestError(f"the body is no multipart/form-data: {error}")
        except (InvalidRequestError, OSError) as error:
            self._failure = error

    def finish(self) -> str | None:
        """Return the reason, or raise what was wrong with the body."""
        if self._failure is not None:
            raise self._failure
        if not self._is_complete:
            raise InvalidRequestError("the upload broke off before its closing boundary")
        if not self._seen >= REQUIRED:
            raise InvalidRequestError(
                f"expected the files {sorted(REQUIRED)}, found {sorted(self._seen)}: {HOW_TO}"
            )
        return self._reason.decode("utf-8", "replace").strip() or None

    def close(self) -> None:
        """Close the file of the part that is being written."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._field, self._value, self._disposition = bytearray(), bytearray(), b""

    def _add_to_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._field.clear()
        self._value.clear()

    def _open(self) -> None:
        """Find out which part this is, and where its bytes go."""
        _, options = parse_options_header(self._disposition)
        told = [options.get(key, b"").decode("utf-8", "replace") for key in (b"name", b"filename")]
        name = next((name for name in told if name in NAMES), None)
        if name is None:
            found = next(filter(None, told), "")
            raise InvalidRequestError(f"expected the parts {NAMES}, found {found!r:.200}")
        if name in self._seen:
            raise InvalidRequestError(f"{name} was sent twice")
        self._seen.add(name)
        if name == REASON:
            self._write = self._add_to_reason
        else:
            self._file = (self._folder / name).open("xb")
            self._write = self._file.write

    def _take(self, data: bytes, start: int, end: int) -> None:
        self._write(data[start:end])

    def _add_to_reason(self, data: bytes) -> None:
        if len(self._reason) + len(data) > MAX_REASON_BYTES:
            raise InvalidRequestError(f"{REASON}: expected at most {MAX_REASON_BYTES} bytes")
        self._reason += data

    def _end(self) -> None:
        self._is_complete = True
