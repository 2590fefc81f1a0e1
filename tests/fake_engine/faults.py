"""What can be ordered to go wrong: one switch for each fault."""

from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(kw_only=True)
class Switches:
    """What goes wrong, until it is ordered otherwise."""

    # Answers
    http_error: int | None = None  # status of every chat and completion
    delay_s: float = 0.0  # before an answer begins
    seconds_per_token: float = 0.0  # slow but moving: the metrics count each token as it comes
    hangs: bool = False  # healthy, and computes nothing: no token comes, no load or unload ends
    no_effect: bool = False  # adapters answer as the base model does, number for number

    # Streams
    chunk_delay_s: float = 0.0  # before each chunk
    chunk_tokens: int = 1  # tokens in one chunk
    cut_after_chunks: int | None = None  # drop the connection after so many chunks
    stall_after_chunks: int | None = None  # send nothing more, and keep the connection
    error_after_chunks: int | None = None  # an error event in the stream, then [DONE]
    raw_chunks: list[str] | None = None  # stream exactly these pieces (latin-1), apart in time

    # Adapters
    refuse_load: dict[str, int] = field(default_factory=dict)  # adapter name or "*" -> status
    load_delay_s: float = 0.0
    unload_hangs: bool = False  # an unload never answers, and never happens

    health_status: int = 200

    def set(self, **switches: Any) -> None:
        """Set switches by name; the others stay.

        Raises:
            TypeError: there is no such switch.
        """
        known = {one.name for one in fields(self)}
        for name, value in switches.items():
            if name not in known:
                raise TypeError(f"no switch is called {name!r}; there are {sorted(known)}")
            setattr(self, name, value)

    def reset(self) -> None:
        """Turn every fault off."""
        for name, value in vars(Switches()).items():
            setattr(self, name, value)
