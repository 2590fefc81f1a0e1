"""The engine's adapters: any number of names, and a few slots that hold weights.

vLLM refuses no load for want of room: it puts out the weights that were used least recently, and
reads them from their folder again when they are asked for.
"""

from pathlib import Path


class AdapterTable(dict[str, str]):
    """Name -> folder of every loaded adapter.

    Attributes:
        most_held: the largest number of names there ever was.
        num_evictions: how often weights had to go for others, which a good client never causes.
    """

    def __init__(self, max_loras: int | None) -> None:
        super().__init__()
        self.most_held = 0
        self.num_evictions = 0
        self._max_loras = max_loras
        self._slots: list[str] = []  # least recently used first

    def load(self, name: str, path: str) -> None:
        """Take a new adapter in."""
        self[name] = path
        self.most_held = max(self.most_held, len(self))
        self.use(name)

    def unload(self, name: str) -> bool:
        """Take an adapter out; False when it was not there."""
        if name in self._slots:
            self._slots.remove(name)
        return self.pop(name, None) is not None

    def use(self, name: str) -> bool:
        """Bring an adapter's weights into a slot; False when their folder is gone."""
        if name in self._slots:
            self._slots.remove(name)
        elif not Path(self[name]).is_dir():
            return False
        self._slots.append(name)
        if self._max_loras is not None and len(self._slots) > self._max_loras:
            del self._slots[0]
            self.num_evictions += 1
        return True

    def lose_all(self) -> None:
        """Start empty, as after a crash."""
        self.clear()
        self._slots.clear()
