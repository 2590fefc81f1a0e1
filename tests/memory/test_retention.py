import asyncio
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest

from memory.database import MemoryConfig
from memory.errors import StoreError
from memory.grade_rows import set_grades
from memory.retention import Retention
from memory.skill_writes import set_vector
from memory.store import Store
from memory.types import CycleState, EpisodeSource, Feedback, Grade, GradeKind, Outcome, utc_now
from tests import records

TEN_DAYS = timedelta(days=10)


def put(store: Store, id: str, age: timedelta = TEN_DAYS, **fields: Any) -> None:
    """Record an episode with a call, a grade and a vector, and digest it."""
    at = utc_now() - age
    episode = records.episode(id=id, created_at=at, **fields)
    call = records.call(id=f"c_{id}", episode_id=id, created_at=at)

    async def record() -> None:
        await store.episodes.record(episode, [call], [None])

    def digest(db: Any) -> None:
        grade = Grade(kind=GradeKind.CHECK, grader="exact", version="1", value=1.0)
        found = {"embedder": "hash", "vector_D": np.ones(4), "missing_reason": None}
        set_vector(db, id, **found)
        outcome = Outcome(value=1.0, provenance=GradeKind.CHECK, num_grades=1)
        set_grades(db, episode, [grade], outcome)

    asyncio.run(record())
    store.database.write(digest)


def praise(store: Store, id: str, at: datetime) -> None:
    said = Feedback(id=f"f_{id}", episode_id=id, created_at=at, value=1.0, source="api")
    asyncio.run(store.episodes.add_feedback(said))
    store.database.write(
        lambda db: db.execute(
            "UPDATE episodes SET digested_revision = revision WHERE id = ?", (id,)
        )
    )


def kept(store: Store) -> list[str]:
    return [row["id"] for row in store.database.read("SELECT id FROM episodes ORDER BY id")]


def enforce(store: Store, **limits: float) -> int:
    return len(Retention(store.database, MemoryConfig(**limits)).enforce())


def test_without_limits_everything_is_kept(store):
    put(store, "ep_1", timedelta(days=10_000))
    assert enforce(store) == 0
    assert kept(store) == ["ep_1"]


def test_an_old_episode_goes_with_all_that_hangs_on_it(store):
    put(store, "ep_1")
    put(store, "ep_2", timedelta(days=1))
    praise(store, "ep_1", utc_now() - TEN_DAYS)
    store.tasks.add([records.task(1, origin="episode:ep_1"), records.task(2)])
    put(store, "ep_3", timedelta(0), source=EpisodeSource.PRACTICE, task_id="task_0001")
    assert enforce(store, keep_days=5) == 2
    assert kept(store) == ["ep_2"]  # practice on its task holds its text, however new
    for table in ("calls", "grades", "vectors"):
        assert [r["episode_id"] for r in store.database.read(f"SELECT * FROM {table}")] == ["ep_2"]
    assert store.database.read("SELECT * FROM feedback") == []
    assert [row["id"] for row in store.database.read("SELECT id FROM tasks")] == ["task_0002"]


def test_an_episode_is_as_old_as_its_last_call_or_feedback(store):
    put(store, "ep_1")
    put(store, "ep_2")
    praise(store, "ep_1", utc_now())
    late = records.call(id="late", episode_id="ep_2", created_at=utc_now())
    asyncio.run(_record(store, late))
    store.database.write(lambda db: db.execute("UPDATE episodes SET digested_revision = revision"))
    assert enforce(store, keep_days=5) == 0


async def _record(store: Store, call: Any) -> None:
    await store.episodes.record(records.episode(id=call.episode_id), [call], [None])


def test_what_is_not_digested_yet_and_what_a_cycle_practises_stays(store):
    store.cycles.start(records.cycle(id="cycle_1"))
    put(store, "ep_1", source=EpisodeSource.PRACTICE, cycle_id="cycle_1")
    put(store, "ep_2")
    store.database.write(
        lambda db: db.execute("UPDATE episodes SET digested_revision = 0 WHERE id = 'ep_2'")
    )
    assert enforce(store, keep_days=5, max_gib=1e-9) == 0


def skill(store: Store, skill_id: int) -> None:
    sql = """INSERT INTO skills (id, title, created_at, policy, centroid_count)
        VALUES (?, 'sums', '', 'auto', 0)"""
    store.database.write(lambda db: db.execute(sql, (skill_id,)))


def test_what_a_running_cycle_practises_on_stays_until_it_ends(store):
    put(store, "ep_1")
    store.tasks.add([records.task(1, origin="episode:ep_1")])
    store.cycles.start(records.cycle(id="cycle_1", skill_ids=()))
    practice = {"source": EpisodeSource.PRACTICE, "task_id": "task_0001", "cycle_id": "cycle_1"}
    put(store, "ep_2", timedelta(0), **practice)
    assert enforce(store, keep_days=5, max_gib=1e-9) == 0
    assert store.tasks.count() == 1
    store.cycles.end("cycle_1", CycleState.NO_SIGNAL, "nothing learned", receipt={})
    assert enforce(store, keep_days=5) == 2
    assert store.tasks.count() == 0


def test_what_was_sampled_at_a_prefix_goes_with_it_but_not_while_a_cycle_runs(store):
    put(store, "ep_1")
    store.cycles.start(records.cycle(id="cycle_1", skill_ids=()))
    practice = {"source": EpisodeSource.PRACTICE, "task_id": "ep_1", "cycle_id": "cycle_1"}
    put(store, "ep_2", timedelta(0), **practice)
    assert enforce(store, keep_days=5) == 0
    store.cycles.end("cycle_1", CycleState.NO_SIGNAL, "nothing learned", receipt={})
    assert enforce(store, keep_days=5) == 2
    assert kept(store) == []


@pytest.mark.parametrize(("task_skill", "num_gone"), [(1, 0), (2, 0), (3, 1), (None, 1)])
def test_a_task_that_a_running_cycle_may_draw_stays(store, task_skill, num_gone):
    for skill_id in (1, 2, 3):
        skill(store, skill_id)
    store.cycles.start(records.cycle(id="cycle_1", skill_ids=(1,)))
    store.database.write(lambda db: db.execute("UPDATE skills SET merged_into = 2 WHERE id = 1"))
    put(store, "ep_1")
    store.tasks.add([records.task(1, origin="episode:ep_1", skill_id=task_skill)])
    assert enforce(store, keep_days=5) == num_gone
    assert store.tasks.count() == 1 - num_gone


@pytest.mark.parametrize("came", ["feedback", "call"])
def test_what_comes_while_an_episode_is_about_to_go_saves_it(store, monkeypatch, came):
    put(store, "ep_1")
    read = store.database.read

    def read_and_then_it_comes(sql: str, values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        found = read(sql, values)
        monkeypatch.setattr(store.database, "read", read)
        if came == "feedback":
            said = Feedback(
                id="f_1", episode_id="ep_1", created_at=utc_now(), value=1.0, source="api"
            )
            asyncio.run(store.episodes.add_feedback(said))
        else:
            call = records.call(id="late", episode_id="ep_1", created_at=utc_now())
            asyncio.run(_record(store, call))
        return found

    monkeypatch.setattr(store.database, "read", read_and_then_it_comes)
    assert enforce(store, keep_days=5) == 0
    assert kept(store) == ["ep_1"]
    assert len(store.episodes.feedback("ep_1")) == (came == "feedback")
    assert len(store.episodes.calls("ep_1")) == 1 + (came == "call")


def test_what_went_before_a_failure_is_told_all_the_same(store, monkeypatch):
    put(store, "ep_1")
    told: list[str] = []
    retention = Retention(
        store.database, MemoryConfig(keep_days=1, max_gib=1), forget=[told.extend]
    )

    def no_disk() -> int:
        raise StoreError("cannot read the database")

    monkeypatch.setattr(retention, "used_bytes", no_disk)
    with pytest.raises(StoreError):
        asyncio.run(retention.run())
    assert told == ["ep_1"]


def test_nobody_is_told_that_nothing_went(store):
    told: list[Any] = []
    asyncio.run(Retention(store.database, MemoryConfig(keep_days=1), forget=[told.append]).run())
    assert told == []


def test_practice_has_a_limit_of_its_own(store):
    put(store, "ep_1")
    put(store, "ep_2", source=EpisodeSource.PRACTICE)
    assert enforce(store, keep_practice_days=5) == 1
    assert kept(store) == ["ep_1"]


def test_a_version_keeps_the_ids_of_what_taught_it(store):
    put(store, "ep_1")
    store.versions.add(records.version(1), ["ep_1"])
    assert enforce(store, keep_days=5) == 1
    assert store.versions.episodes_of("denizen-000001") == ["ep_1"]
    assert store.versions.get("denizen-000001").status == "candidate"


@pytest.mark.parametrize(("num_to_go", "gone"), [(1, "b"), (2, "ab"), (3, "abd"), (4, "abcd")])
def test_room_is_made_by_practice_first_then_by_age_and_what_people_said_goes_last(
    store, monkeypatch, num_to_go, gone
):
    put(store, "ep_a")
    put(store, "ep_b", source=EpisodeSource.PRACTICE)
    put(store, "ep_c")
    put(store, "ep_d")
    praise(store, "ep_c", utc_now())
    monkeypatch.setattr("memory.retention.BATCH", 1)
    retention = Retention(store.database, MemoryConfig(max_gib=1.0))
    monkeypatch.setattr(retention, "used_bytes", lambda: 2**30 + num_to_go - (4 - len(kept(store))))
    assert len(retention.enforce()) == num_to_go
    assert kept(store) == [f"ep_{name}" for name in "abcd" if name not in gone]


def test_the_file_stays_within_its_limit_while_records_go_on_coming(store):
    retention = Retention(store.database, MemoryConfig(max_gib=2 / 1024))
    sizes = []
    for number in range(12):
        for n in range(20):
            id = f"ep_{number:02d}_{n:02d}"
            call = records.call(id=id, episode_id=id, error="x" * 20_000)
            asyncio.run(_record(store, call))
        store.database.write(lambda db: db.execute("UPDATE episodes SET digested_revision = 9"))
        retention.enforce()
        assert retention.used_bytes() <= 2 * 2**20
        store.database.alone(lambda db: db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
        sizes.append(store.database.path.stat().st_size)
    assert max(sizes) < 4 * 2**20


def test_what_went_is_told_to_those_that_hold_it_in_memory(store):
    put(store, "ep_1")
    told: list[str] = []
    config = MemoryConfig(keep_days=1)
    asyncio.run(Retention(store.database, config, forget=[told.extend]).run())
    assert told == ["ep_1"]
