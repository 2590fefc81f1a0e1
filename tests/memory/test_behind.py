import os
import sys
import threading

import pytest

from memory.behind import NICENESS, Behind


def own_niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority")
async def test_work_is_done_at_a_lower_priority_and_nothing_else_is():
    behind, before = Behind(), own_niceness()
    assert await behind.run(own_niceness) == max(before, NICENESS)
    assert own_niceness() == before
    behind.close()


async def test_what_work_returns_or_raises_comes_back():
    behind = Behind()
    assert await behind.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await behind.run(divmod, 7, 0)
    behind.close()
