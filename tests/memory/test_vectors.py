import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory import checkup, vector_file
from memory.errors import StoreError
from memory.index import CompactIndex, VectorIndexError
from memory.skill_writes import set_vector
from memory.store import Store
from memory.vectors import EpisodeVectors
from tests import records

D = 8


def direction(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=D).astype(np.float32)


def put(store: Store, number: int, vector: Any, **fields: Any) -> str:
    """Store an episode and its vector; a known episode's vector is replaced."""
    episode = records.episode(id=f"ep_{number}", tenant=fields.pop("tenant", None))
    call = records.call(id=f"c{os.urandom(8).hex()}", episode_id=episode.id)

    async def record() -> None:
        await store.episodes.record(episode, [call], [None])

    asyncio.run(record())
    given = {"embedder": "hash", "missing_reason": None} | fields
    store.database.write(lambda db: set_vector(db, episode.id, vector_D=vector, **given))
    return episode.id


def erase(store: Store, episode_id: str) -> None:
    def write(db: Any) -> None:
        for table, column in (
            ("vectors", "episode_id"),
            ("calls", "episode_id"),
            ("episodes", "id"),
        ):
            db.execute(f"DELETE FROM {table} WHERE {column} = ?", (episode_id,))

    store.database.write(write)


def opened(store: Store, **fields: Any) -> EpisodeVectors:
    given = {"embedder_id": "hash", "dimension": D, "file": store.database.path.parent / "v.faiss"}
    found = EpisodeVectors(store.database, **given | fields)
    found.open()
    return found


def row_ids(store: Store) -> set[int]:
    sql = "SELECT id FROM vectors WHERE vector IS NOT NULL"
    return {row["id"] for row in store.database.read(sql)}


def nearest(found: EpisodeVectors, vector: Any, **fields: Any) -> list[str]:
    return [one.episode_id for one in found.search(vector, limit=3, **fields)]


def test_the_nearest_comes_first_with_its_exact_cosine(store):
    put(store, 1, np.array([1, 0, 0, 0, 0, 0, 0, 0], dtype=np.float32))
    put(store, 2, np.array([0, 1, 0, 0, 0, 0, 0, 0], dtype=np.float32))
    found = opened(store).search(np.array([3, 4, 0, 0, 0, 0, 0, 0], dtype=np.float32), limit=5)
    # cos((3, 4), (0, 1)) = 4 / 5; cos((3, 4), (1, 0)) = 3 / 5
    assert [(one.episode_id, round(one.similarity, 6)) for one in found] == [
        ("ep_2", 0.8),
        ("ep_1", 0.6),
    ]


def test_what_is_stored_later_is_found_and_what_is_gone_is_not(store):
    put(store, 1, direction(1))
    found = opened(store)
    put(store, 2, direction(2))
    assert nearest(found, direction(2))[0] == "ep_2"
    erase(store, "ep_2")
    assert nearest(found, direction(2)) == ["ep_1"]
    found.reconcile()
    assert found.ids == row_ids(store)


def test_a_vector_that_comes_while_the_index_is_compared_is_found_once(store, monkeypatch):
    put(store, 1, direction(1))
    found = opened(store)
    newest_id = found._rows.newest_id

    def newest_id_and_then_another() -> int:
        before = newest_id()
        put(store, 2, direction(2))
        return before

    monkeypatch.setattr(found._rows, "newest_id", newest_id_and_then_another)
    found.reconcile()
    assert nearest(found, direction(2)) == ["ep_2", "ep_1"]
    put(store, 3, direction(3))
    assert nearest(found, direction(3))[0] == "ep_3"
    assert found.ids == row_ids(store)


def test_rows_that_are_read_again_change_nothing(store):
    put(store, 1, direction(1))
    found = opened(store)
    found._last_id = 0
    put(store, 2, direction(2))
    assert set(nearest(found, direction(2))) == {"ep_1", "ep_2"}


def test_an_id_is_never_used_again(store):
    put(store, 1, direction(1))
    [first] = row_ids(store)
    erase(store, "ep_1")
    put(store, 2, direction(2))
    put(store, 2, direction(3))  # a vector that changes is another vector
    assert min(row_ids(store)) > first + 1
    assert nearest(opened(store), direction(3)) == ["ep_2"]


@pytest.mark.parametrize(
    ("vector", "fields", "reason"),
    [
        (None, {"missing_reason": "empty text"}, "empty text"),
        (np.zeros(D), {}, "zero, or not finite"),
        (np.full(D, np.nan), {}, "zero, or not finite"),
        (np.ones(D), {"embedder": "older"}, "embedded by older"),
    ],
)
def test_a_vector_that_cannot_be_searched_is_left_out_with_a_reason(store, vector, fields, reason):
    put(store, 1, direction(1))
    put(store, 2, vector, **fields)
    found = opened(store)
    assert nearest(found, direction(1)) == ["ep_1"]
    told = checkup.look_into(store.database.path, embedder_id="hash", dimension=D)
    assert told.without_vector == {reason: 1}


def test_tenants_never_cross(store):
    for number in range(40):
        put(store, number, direction(number), tenant="ours" if number % 8 == 0 else None)
    found = opened(store)
    ours = {f"ep_{number}" for number in range(0, 40, 8)}
    for seed in range(20):
        assert set(nearest(found, direction(seed), tenant="ours")) <= ours
        assert not ours.intersection(nearest(found, direction(seed)))
    assert len(nearest(found, direction(1), tenant="ours")) == 3
    assert nearest(found, direction(1), tenant="nobody") == []


def test_a_bad_query_is_refused(store):
    put(store, 1, direction(1))
    found = opened(store)
    for bad in (np.zeros(D), np.full(D, np.inf), np.ones(D + 1)):
        with pytest.raises(VectorIndexError):
            found.search(bad, limit=1)


@pytest.fixture
def large(store: Store) -> Store:
    """Return a store with more vectors than an exact index takes in these tests."""

    def write(db: Any) -> None:
        for number in range(600):
            db.execute(
                """INSERT INTO episodes (id, created_at, source, task_text, learn, revision,
                    digested_revision) VALUES (?, '', 'chat', '', 1, 1, 1)""",
                (f"ep_{number}",),
            )
            blob = direction(number).tobytes()
            db.execute(
                "INSERT INTO vectors (episode_id, embedder, vector) VALUES (?, 'hash', ?)",
                (f"ep_{number}", blob),
            )

    store.database.write(write)
    return store


def compact(store: Store, **fields: Any) -> EpisodeVectors:
    return opened(store, max_exact=100, **fields)


def test_past_a_size_a_compact_index_is_trained_and_read_again_at_the_next_start(
    large, monkeypatch
):
    first = compact(large)
    first.maintain()
    file = large.database.path.parent / "v.faiss"
    assert file.stat().st_size < 600 * D * 4 * 2
    put(large, 1_000, direction(1_000))
    erase(large, "ep_5")
    monkeypatch.setattr(CompactIndex, "train", None)  # the file is enough
    again = compact(large)
    assert again.ids == row_ids(large)
    assert nearest(again, direction(1_000))[0] == "ep_1000"
    assert nearest(again, direction(7))[0] == "ep_7"
    assert "ep_5" not in nearest(again, direction(5))


def broken(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif how == "changed":
        path.write_bytes(whole[:-300] + b"\xff" * 8 + whole[-292:])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "header":
        path.write_bytes(vector_file.MAGIC + b"{}\n")
    else:
        path.write_bytes(os.urandom(3_000))


@pytest.mark.parametrize("how", ["cut", "changed", "empty", "header", "other"])
def test_a_broken_file_is_made_again(large, how):
    compact(large).maintain()
    file = large.database.path.parent / "v.faiss"
    broken(file, how)
    again = compact(large)
    assert not file.exists()
    assert again.ids == row_ids(large)
    again.maintain()
    assert file.exists()


def test_a_file_of_another_database_or_embedder_or_of_a_later_life_is_not_used(large):
    compact(large).maintain()
    file = large.database.path.parent / "v.faiss"
    kept = file.read_bytes()
    assert len(compact(large, embedder_id="newer")) == 0
    assert not file.exists()
    file.write_bytes(kept)
    large.database.write(lambda db: db.execute("UPDATE identity SET id = 'another'"))
    compact(large)
    assert not file.exists()


def test_p49_a_file_of_another_dimension_is_not_used(large):
    compact(large).maintain()
    wider = compact(large, dimension=2 * D)
    assert not (large.database.path.parent / "v.faiss").exists()
    assert wider.search(np.ones(2 * D, dtype=np.float32), limit=3) == []


def test_p53_what_is_erased_leaves_an_index_in_use_and_its_file(large):
    found = compact(large)
    found.maintain()
    [gone] = large.database.read("SELECT id FROM vectors WHERE episode_id = 'ep_5'")
    assert gone["id"] in compact(large).ids
    erase(large, "ep_5")
    found.forget_gone()
    assert gone["id"] not in found.ids
    with (large.database.path.parent / "v.faiss").open("rb") as file:
        header = vector_file._read_header(file)
        assert CompactIndex.read(file, header.num_trained_for).ids == row_ids(large)


def test_a_file_that_knows_more_than_the_database_is_not_used(large):
    compact(large).maintain()
    file = large.database.path.parent / "v.faiss"

    def as_in_an_older_backup(db: Any) -> None:
        db.execute("DELETE FROM vectors WHERE id > 500")
        db.execute("UPDATE sqlite_sequence SET seq = 500 WHERE name = 'vectors'")

    large.database.write(as_in_an_older_backup)
    again = compact(large)
    assert not file.exists()
    assert again.ids == row_ids(large)


def test_an_index_is_trained_anew_when_it_was_outgrown(large):
    found = compact(large)
    found.maintain()
    trained = found._index
    found.maintain()
    assert found._index is trained
    large.database.write(lambda db: db.execute("DELETE FROM vectors WHERE id <= 50"))
    trained.num_trained_for = 10
    found.maintain()
    assert found._index is not trained
    assert found.ids == row_ids(large)


def test_searching_goes_on_while_vectors_come_and_go(large):
    found = compact(large)
    found.maintain()
    failures: list[BaseException] = []
    num_searches = 0
    done = threading.Event()

    def search() -> None:
        nonlocal num_searches
        try:
            while not done.is_set():
                assert len(found.search(direction(3), limit=5)) == 5
                num_searches += 1
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=search)
    reader.start()
    for number in range(30):
        erase(large, f"ep_{number + 100}")
        put(large, 2_000 + number, direction(number))
        found.maintain()
    done.set()
    reader.join()
    assert not failures
    assert num_searches > 0
    assert found.ids == row_ids(large)


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["put", "erase", "open", "search"]))))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_found_is_what_is_stored_whatever_happens(tmp_path_factory, steps):
    store = Store(tmp_path_factory.mktemp("store") / "denizen.db")
    found = opened(store)
    kept: set[str] = set()
    for number, step in steps:
        if step == "put":
            kept.add(put(store, number, direction(number)))
        elif step == "erase":
            erase(store, f"ep_{number}")
            kept.discard(f"ep_{number}")
        elif step == "open":
            found = opened(store)
            assert found.ids == row_ids(store)
        else:
            assert {one.episode_id for one in found.search(direction(number), limit=9)} == kept
    store.close()


def test_a_row_cannot_get_another_vector_under_its_id(store):
    put(store, 1, direction(1))
    with pytest.raises(StoreError, match="replace it"):
        store.database.write(lambda db: db.execute("UPDATE vectors SET vector = x'00'"))
