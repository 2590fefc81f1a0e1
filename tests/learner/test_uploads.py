import asyncio
import errno
import os
from pathlib import Path

import httpx
import pytest

from learner import uploads
from learner.uploads import BLOCK_BYTES, MAX_REASON_BYTES, receive
from memory.errors import InvalidRequestError, TooLargeError, UnavailableError

WEIGHTS, CONFIG, MANIFEST = "adapter_model.safetensors", "adapter_config.json", "manifest.json"
GOOD = [(WEIGHTS, (WEIGHTS, b"\0\r\n--weights")), (CONFIG, (CONFIG, b"{}"))]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / ".staging-x"
    made.mkdir()
    return made


def encoded(parts, fields=None) -> tuple[str, bytes]:
    """Return the content type and the body that httpx sends."""
    request = httpx.Request("POST", "http://x/", files=parts, data=fields)
    return request.headers["content-type"], request.read()


async def take(folder, content_type, body, size=1 << 16) -> str | None:
    async def stream():
        for start in range(0, len(body), size):
            yield body[start : start + size]

    return await receive(content_type, stream(), folder)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
async def test_files_and_reason_arrive_however_the_body_is_cut(folder, monkeypatch, size):
    monkeypatch.setattr(uploads, "BLOCK_BYTES", 5)
    parts = [*GOOD, (MANIFEST, (MANIFEST, b"[]"))]
    reason = await take(folder, *encoded(parts, {"reason": " tried at home é "}), size)
    assert reason == "tried at home é"
    assert written(folder) == {WEIGHTS: b"\0\r\n--weights", CONFIG: b"{}", MANIFEST: b"[]"}


async def test_a_large_file_is_written_in_blocks_and_whole(folder):
    weights = os.urandom(2 * BLOCK_BYTES + 17)
    assert await take(folder, *encoded([(WEIGHTS, (WEIGHTS, weights)), GOOD[1]])) is None
    assert written(folder)[WEIGHTS] == weights


@pytest.mark.parametrize(
    "parts",
    [
        [("files", (WEIGHTS, b"w")), ("files", (CONFIG, b"c"))],  # curl -F files=@…
        [(WEIGHTS, ("/tmp/w.st", b"w")), (CONFIG, ("5", b"c"))],
        [(WEIGHTS, (None, b"w")), (CONFIG, (None, b"c"))],  # curl -F name=<file
        [(WEIGHTS, (CONFIG, b"w")), (CONFIG, (WEIGHTS, b"c"))],  # the field's name wins
    ],
)
async def test_a_part_is_known_by_its_field_or_else_by_its_file_name(folder, parts):
    await take(folder, *encoded(parts))
    assert written(folder) == {WEIGHTS: b"w", CONFIG: b"c"}


@pytest.mark.parametrize(
    "name",
    ["adapter_model.bin", "x.pt", "README.md", "../adapter_config.json", "a/" + CONFIG, "ｘ", "\0"],
)
async def test_any_other_part_is_refused_by_name_and_nothing_stays(folder, name):
    parts = [*GOOD, ("file", (name, b"x" * 100))]
    with pytest.raises(InvalidRequestError, match=r"expected the parts .*found"):
        await take(folder, *encoded(parts))
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("parts", "fields", "message"),
    [
        (GOOD[:1], None, "expected the files .* found .*safetensors"),
        ([*GOOD, GOOD[0]], None, "sent twice"),
        (GOOD, {"reason": "x" * (MAX_REASON_BYTES + 1)}, "at most"),
    ],
)
async def test_a_body_that_lacks_or_repeats_a_part_is_refused(folder, parts, fields, message):
    with pytest.raises(InvalidRequestError, match=message):
        await take(folder, *encoded(parts, fields))
    assert list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    "content_type",
    ["", "application/json", "multipart/form-data", "multipart/form-data; boundary=" + "x" * 500],
)
async def test_another_kind_of_body_is_refused_after_it_was_read(folder, content_type):
    read = 0

    async def stream():
        nonlocal read
        for _ in range(3):
            read += 1
            yield b"{}"

    with pytest.raises(InvalidRequestError, match="multipart/form-data"):
        await receive(content_type, stream(), folder)
    assert read == 3
    assert not folder.exists()


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
async def test_a_body_that_breaks_off_is_refused(folder, share):
    content_type, body = encoded(GOOD)
    with pytest.raises(InvalidRequestError, match="broke off"):
        await take(folder, content_type, body[: int(len(body) * share)])
    assert not folder.exists()


async def test_garbage_is_refused(folder):
    with pytest.raises(InvalidRequestError, match="no multipart"):
        await take(folder, "multipart/form-data; boundary=b", b"garbage" * 1000)
    assert not folder.exists()


async def test_a_full_disk_is_said_after_the_body_was_read_and_nothing_stays(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(uploads._Parts, "_take", full)
    content_type, body = encoded(GOOD)
    read = 0

    async def stream():
        nonlocal read
        for start in range(0, len(body), 50):
            read += 50
            yield body[start : start + 50]

    monkeypatch.setattr(uploads, "BLOCK_BYTES", 50)
    with pytest.raises(UnavailableError, match="No space left on device"):
        await receive(content_type, stream(), folder)
    assert read >= len(body)
    assert not folder.exists()


async def test_what_stops_the_reading_takes_the_folder_away(folder):
    async def stream():
        yield encoded(GOOD)[1][:50]
        raise TooLargeError("too large")

    with pytest.raises(TooLargeError):
        await receive(encoded(GOOD)[0], stream(), folder)
    assert not folder.exists()


async def test_a_cancelled_upload_takes_the_folder_away(folder):
    begun = asyncio.Event()

    async def stream():
        yield encoded(GOOD)[1][:50]
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(receive(encoded(GOOD)[0], stream(), folder))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not folder.exists()
