from collections.abc import Iterator

import pytest
from hypothesis import settings

from memory.store import Store
from tests.running import ServiceThread

# How long an example takes says nothing on a busy machine; pytest-timeout ends what hangs.
settings.register_profile("denizen", deadline=None)
settings.load_profile("denizen")


@pytest.fixture
def store(tmp_path) -> Iterator[Store]:
    store = Store(tmp_path / "denizen.db")
    yield store
    store.close()


@pytest.fixture(scope="session")
def real_service(tmp_path_factory) -> Iterator[ServiceThread]:
    """Start the service with the real vLLM and the packaged model, once for all tests.

    Three adapter slots, the fewest: live, previous, and the weights in practice.
    """
    sections = {
        "engine": {"max_loras": 3, "kv_cache_gib": 1},
        "learner": {
            "enabled": False,
            "steps_per_cycle": 2,
            "tasks_per_step": 4,
            "group_size": 6,
            "max_heldout_tasks": 16,
        },
    }
    home = tmp_path_factory.mktemp("real")
    with ServiceThread(home, None, sections, ready_timeout_s=300) as service:
        yield service
