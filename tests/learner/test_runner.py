import asyncio
import time

import pytest

from learner.curriculum import LearnerConfig
from learner.runner import FIRST_PAUSE_S, CycleRunner
from memory.errors import ConflictError, NotFoundError
from memory.skill_writes import save_skill
from memory.store import Store
from memory.task_store import add_task
from memory.types import CycleState, Split, utc_now
from tests import records

CONFIG = LearnerConfig(min_new_signal=4, min_train_tasks=2, min_heldout_tasks=2)


class FakePointer:
    live = "base"


class FakeWorkshop:
    """What the runner needs of a workshop, and a cycle that fails at once: it has nothing else."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pointer = FakePointer()
        self.learner = CONFIG
        self.base_digest = "b" * 64
        self.work_dir = store.database.path.parent / "work"


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "denizen.db")

    def write(db) -> None:
        for skill_id in (1, 2):
            save_skill(
                db,
                skill_id=skill_id,
                title=f"s{skill_id}",
                tenant=None,
                task_key=None,
                embedder="hash",
                centroid_D=None,
                count=0,
            )
        for number in range(6):
            split = Split.TRAIN if number % 2 else Split.HELDOUT
            add_task(db, records.task(number, skill_id=1, split=split, created_at=utc_now()))

    store.database.write(write)
    yield store
    store.close()


@pytest.fixture
def runner(store):
    return CycleRunner(FakeWorkshop(store), is_engine_ready=lambda: True)  # type: ignore[arg-type]


async def ended(runner: CycleRunner) -> None:
    deadline = time.monotonic() + 5
    while runner.running and time.monotonic() < deadline:
        await asyncio.sleep(0.01)


async def test_a_skill_with_enough_new_signal_starts_a_cycle(store, runner):
    await runner.check()
    await ended(runner)
    [cycle] = store.cycles.page(limit=9)
    assert cycle.skill_ids == (1,)
    assert "skill 1: 6 new" in cycle.reason


async def test_a_failed_cycle_is_not_tried_again_at_once(store, runner):
    await runner.check()
    await ended(runner)
    assert store.cycles.page(limit=9)[0].state is CycleState.FAILED
    await runner.check()
    assert runner.running is None
    assert len(store.cycles.page(limit=9)) == 1
    assert runner._not_before > asyncio.get_running_loop().time() + FIRST_PAUSE_S / 2


async def test_one_cycle_at_a_time(runner):
    runner.start([1], reason="a test")
    with pytest.raises(ConflictError, match="runs already"):
        runner.start([1], reason="a test")
    await ended(runner)


async def test_an_unknown_skill_is_not_found_and_starts_nothing(store, runner):
    with pytest.raises(NotFoundError):
        runner.start([7], reason="a test")
    assert store.cycles.page(limit=9) == []


async def test_nothing_starts_while_the_engine_is_down(store):
    runner = CycleRunner(FakeWorkshop(store), is_engine_ready=lambda: False)  # type: ignore[arg-type]
    await runner.check()
    assert store.cycles.page(limit=9) == []
