"""The engine's adapters: any number of names, and a few slots that hold weights.

vLLM refuses no load for want of room: it puts out the weights that were used least recently, and
reads them from their folder again when they are asked for. Nor does an unload take weights out: it
forgets the name, and the weights stay until others put them out.
"""

from pathlib import Path


class AdapterTable(dict[str, str]):
    """Name -> folder of every loaded adapter.

    Attributes:
        most_held: the largest number of names there ever was.
        num_evictions: how often weights of a loaded name had to go, which a good client never
            causes.
    """

    def __init__(self, max_loras: int | None) -> None:
        super().__init__()
        self.most_held = 0
        self.num_evictions = 0
        self._max_loras = max_loras
        self._slots: list[tuple[str, int]] = []  # name and its load, least recently used first
        self._loads: dict[str, int] = {}  # name -> its last load, by number
        self._num_loads = 0

    def load(self, name: str, path: str) -> None:
        """Take a new adapter in."""
        self[name] = path
        self._num_loads += 1
        self._loads[name] = self._num_loads
        self.most_held = max(self.most_held, len(self))
        self.use(name)

    def unload(self, name: str) -> bool:
        """Take an adapter out; False when it was not there."""
        return self.pop(name, None) is not None

    def use(self, name: str) -> bool:
        """Bring an adapter's weights into a slot; False when their folder is gone."""
        weights = (name, self._loads[name])
        if weights in self._slots:
            self._slots.remove(weights)
        elif not Path(self[name]).is_dir():
            return False
        self._slots.append(weights)
        if self._max_loras is not None and len(self._slots) > self._max_loras:
            gone, load = self._slots.pop(0)
            self.num_evictions += gone in self and self._loads[gone] == load
        return True

    def lose_all(self) -> None:
        """Start empty, as after a crash."""
        self.clear()
        self._slots.clear()
