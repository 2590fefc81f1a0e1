"""What the tests of the adapter slot share: versions on disk, and a short way to ask."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from agent.adapter_slot import AdapterSlot
from memory.errors import AdapterError, NotFoundError

HELLO = [{"role": "user", "content": "3 * 4 = ?"}]
V1, V2, V3, V4, V5, V6 = (f"denizen-{number:06d}" for number in range(1, 7))
LAST_NUMBER = 200


class Files:
    """Adapter folders by version; what is in ``broken`` fails its check."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broken: set[str] = set()
        self.checked: list[str] = []

    async def path_of(self, version: str) -> Path:
        self.checked.append(version)
        if version in self.broken:
            raise AdapterError(f"{version}: adapter_model.safetensors is not what was recorded")
        if int(version[-6:]) > LAST_NUMBER:
            raise NotFoundError(f"there is no adapter version {version}")
        folder = self.root / version
        folder.mkdir(exist_ok=True)
        return folder


async def ask(slot: AdapterSlot, version: str | None = None) -> str:
    """Return the text that a version, by default the live one, answers."""
    async with slot.lease(version or slot.live) as lease:
        answer = await lease.client.chat({"model": lease.model, "messages": HELLO})
    text: str = answer["choices"][0]["message"]["content"]
    return text


async def go_live(slot: AdapterSlot, version: str) -> None:
    """Publish and move."""
    await slot.publish(version)
    slot.move(version)


async def wait_for(claim: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
