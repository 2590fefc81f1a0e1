"""The adapters of one engine: what is loaded, what is proven, who uses it, and what goes for what.

At most ``max_resident`` names are in the engine at any time, those on their way in or out included.
A load that finds no room unloads the least recently used name that nobody needs, or waits a bounded
time for one. Names in use are never unloaded, and using a proven name never waits. It knows neither
which version is live nor where adapter files come from.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from agent.errors import EngineError, EngineRejectedError, EngineUnavailableError
from agent.policy import PolicyClient, ServedModel
from agent.probe import probe_effect
from agent.unloads import Unloads
from memory.errors import AdapterError, UnavailableError
from memory.version_store import BASE

NAME_PREFIX = "denizen-"  # of versions and of weights in practice
TOUCH_TOKEN_IDS = [1]
TOUCH_TIMEOUT_S = 30.0
ROOM_TIMEOUT_S = 20.0
"""How long a load waits for its turn and for room: longer than one unload that hangs."""


class NoRoomError(UnavailableError):
    """Every place for an adapter is taken by one that has to stay."""

    code = "no_adapter_slot"


class Keep(IntEnum):
    """How badly an adapter is needed; the least needed goes first."""

    ON_DEMAND = 0  # it can be loaded again when it is asked for
    IF_POSSIBLE = 1  # the version before: without it, rolling back costs a load
    ALWAYS = 2


@dataclass(slots=True)
class _Adapter:
    path: Path
    is_proven: bool = False  # since the engine was last seen down


class EngineSlots:
    """One engine and the adapters in it.

    Example:
        ``await slots.load("denizen-000007", path, probe=True)``; ask ``slots.client``; then
        ``slots.release("denizen-000007")``.

    Args:
        client: the engine.
        max_resident: names in the engine at most; its ``--max-loras``.
        keep: how badly a name is needed just now.

    Attributes:
        base_name: what the engine itself calls the base model.
        down_reason: why it may not be asked anything; None while it answers.
        life: grows whenever the engine went down or lost something; what was proven is then open.
    """

    def __init__(
        self, client: PolicyClient, *, max_resident: int, keep: Callable[[str], Keep]
    ) -> None:
        self.client = client
        self.base_name = BASE
        self.down_reason: str | None = "it has not answered yet"
        self.life = 0
        self._base: str | None = None  # folder or hub name of its base model
        self._max_resident = max_resident
        self._keep = keep
        self._adapters: dict[str, _Adapter] = {}  # least recently used first
        self._loading: str | None = None
        self._leases: Counter[str] = Counter()
        self._retired: set[str] = set()  # to be unloaded when their last lease ends
        self._turn = asyncio.Lock()  # one load at a time, in the order of asking
        self._freed = asyncio.Event()  # perhaps there is room now
        self._unloads = Unloads(client, on_end=self._freed.set)

    @property
    def is_up(self) -> bool:
        """Whether the engine answers."""
        return self.down_reason is None

    @property
    def resident(self) -> tuple[str, ...]:
        """The names that hold a place, least recently used first."""
        return tuple(self._adapters)

    @property
    def num_leases(self) -> int:
        """How many requests are under way."""
        return self._leases.total()

    def has(self, name: str) -> bool:
        """Say whether ``name`` can be asked for at once."""
        adapter = self._adapters.get(name)
        return adapter is not None and adapter.is_proven and name not in self._retired

    def can_answer_as(self, version: str) -> bool:
        """Say whether a request for ``version``, "base" included, can be sent now."""
        return self.is_up and (version == BASE or self.has(version))

    def has_room_for(self, name: str) -> bool:
        """Say whether ``name`` could be loaded without waiting and without unloading another."""
        return name in self._adapters or self._num_held < self._max_resident

    def hold(self, name: str) -> None:
        """Count one more user of ``name``, the base model included."""
        self._leases[name] += 1
        if name in self._adapters:
            self._adapters[name] = self._adapters.pop(name)

    def release(self, name: str) -> None:
        """Count one user less."""
        self._leases[name] -= 1
        if self._leases[name]:
            return
        del self._leases[name]
        if name in self._retired:
            self._drop(name)
        self._freed.set()

    def withdraw(self, name: str) -> None:
        """Unload ``name`` in the background, as soon as nobody uses it."""
        if self._leases[name]:
            self._retired.add(name)
        else:
            self._drop(name)

    async def load(self, name: str, path: Path, *, probe: bool) -> None:
        """Bring ``name`` into the engine, prove that it has an effect, and hold it once.

        What is there already is not loaded again, what is proven not proven again. After an error
        it is unloaded.

        Raises:
            NoRoomError: every place stayed taken for ``ROOM_TIMEOUT_S``.
            AdapterError: the engine refused it, or it has no effect.
            EngineUnavailableError: the engine went away.
        """
        await self._begin(name)
        life = self.life
        try:
            self.hold(name)
            try:
                adapter = self._adapters.get(name)
                if adapter is None:
                    await self._touch_all()
                    adapter = self._adapters[name] = _Adapter(path)
                    await self._put(name, path)
                if probe and not adapter.is_proven:
                    await probe_effect(self.client, self.base_name, name)
                if life != self.life:
                    raise EngineUnavailableError(f"the engine went down while it loaded {name}")
                adapter.is_proven = True
            except BaseException:  # also when cancelled: nothing half-loaded keeps a place
                self._retired.add(name)
                self.release(name)
                raise
        finally:
            self._loading = None
            self._turn.release()

    async def look(self) -> bool:
        """Ask the engine what it has, and believe it; say whether something was lost.

        An engine that was down may have been restarted. What it has then under our names, and this
        object did not load, is of another life and is unloaded.

        Raises:
            EngineUnavailableError, EngineError: it does not answer, or not as it should.
        """
        life = self.life
        known = {name: one for name, one in self._adapters.items() if name != self._loading}
        served = await self.client.served()
        if life != self.life:
            raise EngineUnavailableError(self.down_reason or "the engine restarted meanwhile")
        roots = {model.name: model.root for model in served if model.parent is not None}
        self._recognise(next((model for model in served if model.parent is None), None))
        gone = [name for name, one in known.items() if roots.get(name) != str(one.path)]
        lost = [name for name in gone if self._adapters.get(name) is known[name]]
        for name in lost:
            del self._adapters[name]
        if not self.is_up:
            self._sweep(roots)
        self.down_reason = None
        return bool(lost)

    def mark_down(self, reason: str) -> None:
        """Ask nothing of the engine until ``look`` finds that it answers."""
        self.down_reason = reason
        self.doubt()

    def doubt(self) -> None:
        """Take nothing for proven any more: the engine may be another one by now."""
        self.life += 1
        for adapter in self._adapters.values():
            adapter.is_proven = False

    async def close(self) -> None:
        """Give up the unloads that still run."""
        await self._unloads.close()

    @property
    def _num_held(self) -> int:
        return len(self._adapters) + len(self._unloads)

    async def _begin(self, name: str) -> None:
        """Wait for the turn to load, and for room."""
        try:
            async with asyncio.timeout(ROOM_TIMEOUT_S):
                await self._turn.acquire()
                try:
                    await self._make_room(name)
                except BaseException:
                    self._turn.release()
                    raise
        except TimeoutError:
            raise NoRoomError(
                f"{name} found no room within {ROOM_TIMEOUT_S:g} s: the engine takes "
                f"{self._max_resident} adapters (engine.max_loras) and holds {self._occupants()}"
            ) from None
        self._loading = name
        self._retired.discard(name)

    async def _make_room(self, name: str) -> None:
        """Return when ``name`` has a place, or one more name fits; unload what may go."""
        while name in self._unloads or not self.has_room_for(name):
            self._freed.clear()
            if len(self._adapters) >= self._max_resident and (victim := self._victim()):
                self._drop(victim)
            await self._freed.wait()

    def _victim(self) -> str | None:
        """Return the least needed name that nobody uses, the least recently used of several."""
        idle = [name for name in self._adapters if not self._leases[name]]
        loose = [name for name in idle if self._keep(name) is not Keep.ALWAYS]
        return min(loose, key=self._keep, default=None)

    def _occupants(self) -> str:
        """Say what holds each place, for people."""
        held = [f"{name} ({self._leases[name]} in use)" for name in self._adapters]
        return ", ".join([*held, *(f"{name} (being unloaded)" for name in self._unloads)])

    async def _touch_all(self) -> None:
        """Use every adapter once, so that none of them makes way for the next.

        vLLM's unload forgets a name and keeps its weights; what a load pushes out is what was used
        least recently, and an adapter pushed out is read again from its folder, unverified, at its
        next request.
        """
        async with asyncio.timeout(TOUCH_TIMEOUT_S):
            await asyncio.gather(*map(self._touch, self._adapters))

    async def _touch(self, name: str) -> None:
        with suppress(EngineRejectedError):  # lost, as the next look will find
            await self.client.prompt_logprobs(name, TOUCH_TOKEN_IDS)

    async def _put(self, name: str, path: Path) -> None:
        """Load ``name``; what the engine has under that name already is of another life."""
        try:
            try:
                await self.client.load_adapter(name, path)
            except EngineRejectedError:
                if name not in await self.client.models():
                    raise
                await self.client.unload_adapter(name)
                await self.client.load_adapter(name, path)
        except (EngineError, EngineRejectedError) as error:
            raise AdapterError(f"the engine refused {name}: {error}") from error

    def _sweep(self, names: Iterable[str]) -> None:
        """Unload what the engine has under our names and this object does not know."""
        for name in names:
            is_ours = name.startswith(NAME_PREFIX)
            if is_ours and name not in self._adapters and name not in self._unloads:
                self._unloads.start(name)

    def _recognise(self, base: ServedModel | None) -> None:
        """Learn the base model's name; notice a server that was replaced by one of another."""
        if base is None:
            raise EngineError("the engine names no base model")
        if self._base not in {None, base.root}:
            raise EngineError(
                f"the engine serves {base.root} now, not {self._base}: restart Denizen to change "
                "the base model"
            )
        self._base, self.base_name = base.root, base.name

    def _drop(self, name: str) -> None:
        self._retired.discard(name)
        if self._adapters.pop(name, None) is not None:
            self._unloads.start(name)
