import pytest

from memory.skill_store import SkillStore
from memory.store import Store
from memory.task_store import add_task
from memory.types import CycleStage, CycleState, TaskRole
from tests import records

STEP = CycleStage(cycle_id="cycle_1", name="step-01")
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
    assert [cycle.id for cycle in running.cycles.running()] == ["cycle_1"]
    running.cycles.end("cycle_1", CycleState.INTERRUPTED, "its tasks are gone", receipt={})
    assert running.cycles.running() == []
    assert new_signal(running) == 2


def test_the_signal_of_a_cycle_that_came_to_an_end_is_used_up(running):
    running.cycles.end("cycle_1", CycleState.NO_SIGNAL, "nothing learned", receipt={})
    assert running.cycles.running() == []
    assert new_signal(running) == 0


def test_a_service_that_was_stopped_is_no_death(running):
    taken = running.cycles.take_up("cycle_1")
    assert (taken.num_resumes, taken.num_deaths) == (1, 1)
    running.cycles.note_stop("cycle_1")
    assert running.cycles.get("cycle_1").was_stopped
    taken = running.cycles.take_up("cycle_1")
    assert (taken.num_resumes, taken.num_deaths, taken.was_stopped) == (2, 1, False)


def test_what_a_cycle_works_on_is_read_back_in_order_until_it_ends(running):
    first, second = (running.tasks.get(f"task_{number:04d}") for number in (1, 2))
    chosen = {TaskRole.TRAIN: [second, first], TaskRole.GUARD: [first]}
    running.cycles.set_tasks("cycle_1", chosen)
    assert running.cycles.tasks("cycle_1") == chosen
    assert running.cycles.num_lost_tasks("cycle_1") == 0
    running.database.write(lambda db: db.execute("DELETE FROM tasks WHERE id = 'task_0002'"))
    assert running.cycles.num_lost_tasks("cycle_1") == 1
    running.cycles.end("cycle_1", CycleState.FAILED, "a test", receipt={})
    assert running.cycles.tasks("cycle_1") == {}


def test_a_cycle_uses_what_it_sampled_what_taught_it_and_what_its_tasks_were_made_of(running):
    def write(db) -> None:
        add_task(db, records.task(3, skill_id=1, origin="episode:ep_live"))

    running.database.write(write)
    running.cycles.set_tasks("cycle_1", {TaskRole.TRAIN: [running.tasks.get("task_0003")]})
    running.cycles.note_taught(STEP, {"ep_taught"})
    for _ in range(2):  # the same again is the same
        running.cycles.note_taught(STEP, {"ep_taught"})
    assert running.cycles.episodes_of(STEP) == {"ep_taught"}
    many = [f"ep_{number}" for number in range(1_000)]
    assert not running.cycles.uses("cycle_1", many)
    assert running.cycles.uses("cycle_1", [*many, "ep_live"])
    assert running.cycles.uses("cycle_1", [*many, "ep_taught"])


@pytest.mark.parametrize("id", ["ep_taught", "task_0001"])
def test_an_erasure_of_what_a_cycle_works_with_hits_it(running, id):
    running.cycles.set_tasks("cycle_1", {TaskRole.TRAIN: [running.tasks.get("task_0001")]})
    running.cycles.note_taught(STEP, {"ep_taught"})
    assert not running.cycles.is_hit_by_erasure("cycle_1")

    def erase(db) -> None:
        db.execute(
            """INSERT INTO erasures (id, created_at, actor, scope, scope_sha256, counts, tainted)
                VALUES ('erasure_1', '', '', '', '', '{}', '[]')"""
        )
        db.execute("INSERT INTO erased_ids (id, erasure_id) VALUES (?, 'erasure_1')", (id,))

    running.database.write(erase)
    assert running.cycles.is_hit_by_erasure("cycle_1")
