import pytest

from memory.cycle_store import WHY_INTERRUPTED
from memory.skill_store import SkillStore
from memory.store import Store
from memory.types import CycleState
from tests import records

SKILL = """INSERT INTO skills (id, title, created_at, policy, centroid_count)
    VALUES (1, 'sums', '2026-01-01T12:00:00+00:00', 'learn', 0)"""


def new_signal(store: Store) -> int:
    return SkillStore(store.database).get(1).num_new_signal


@pytest.fixture
def running(store: Store) -> Store:
    """A cycle runs that began after a person brought two tasks."""
    store.database.write(lambda db: db.execute(SKILL))
    store.tasks.add([records.task(number, skill_id=1) for number in (1, 2)])
    assert new_signal(store) == 2
    store.cycles.start(records.cycle(id="cycle_1", skill_ids=(1,), created_at=records.later(60)))
    assert new_signal(store) == 0
    return store


def test_the_signal_of_a_cycle_that_was_interrupted_counts_for_the_next_one(running):
    assert running.cycles.interrupt_running() == ["cycle_1"]
    ended = running.cycles.get("cycle_1")
    assert (ended.state, ended.end_reason) == (CycleState.INTERRUPTED, WHY_INTERRUPTED)
    assert new_signal(running) == 2


def test_the_signal_of_a_cycle_that_came_to_an_end_is_used_up(running):
    running.cycles.end("cycle_1", CycleState.NO_SIGNAL, "nothing learned", receipt={})
    assert running.cycles.interrupt_running() == []
    assert new_signal(running) == 0
