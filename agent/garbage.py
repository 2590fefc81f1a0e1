"""When Python looks for garbage that only it can find.

Such a look goes over every object that is old, and once torch is imported there are a million. It
does not know whose objects they are.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (20_000, 20, 100)
"""New containers before a look at the new ones, such looks before one at the middle-aged, and those
before one at all; Python's own are 700, 10 and 10. A request leaves almost no cycles behind.
"""


@contextmanager
def looked_for_rarely() -> Iterator[None]:
    """Look for garbage rarely while the context lasts."""
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()  # else libraries report at exit that their objects were leaked


def keep_what_is() -> None:
    """Never look again at what exists now: modules, models and classes, which stay anyway."""
    gc.freeze()
