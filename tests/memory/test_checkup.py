import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlite_utils

from memory import checkup, rows
from memory.errors import StoreError
from memory.schema import migrations
from memory.store import Store
from tests.memory.test_call_rows import conversation, record
from tests.memory.test_vectors import direction, opened, put
from tests.records import episode

HASH = {"embedder_id": "hash", "dimension": 8}


@pytest.fixture
def file(store: Store) -> Path:
    return store.database.path


def by_force(file: Path, sql: str, *values: Any) -> None:
    """Change rows as a program that looks at no foreign key can."""
    with sqlite3.connect(file) as connection:
        connection.execute(sql, values)
    connection.close()


async def test_a_sound_record_is_counted(store, file):
    await record(store, *conversation(4))
    found = checkup.look_into(file, **HASH)
    assert (found.num_calls, found.unreadable, found.orphans) == (4, (), {})
    assert found.cache_problem is None


@pytest.mark.parametrize(
    ("sql", "broken"),
    [
        ("DELETE FROM calls WHERE id = 'c1'", "c2"),
        ("UPDATE calls SET episode_id = 'ep_2' WHERE id = 'c1'", "c2"),
        ("UPDATE calls SET prompt_token_ids = x'00000000' WHERE id = 'c0'", "c1"),
        ("UPDATE calls SET request = '{\"messages\":[]}', message = NULL WHERE id = 'c0'", "c1"),
        ("UPDATE calls SET base_id = 'c3' WHERE id = 'c1'", "c1"),
    ],
)
async def test_a_call_that_lost_what_it_is_based_on_is_named(store, file, sql, broken):
    await record(store, *conversation(4))
    by_force(file, sql)
    assert broken in checkup.look_into(file, **HASH).unreadable


async def test_rows_that_hang_on_nothing_are_counted_by_table(store, file):
    await record(store, *conversation(2))
    by_force(file, "DELETE FROM episodes")
    assert checkup.look_into(file, **HASH).orphans == {"calls": 2}


def test_episodes_without_a_vector_are_counted_by_reason(store, file):
    put(store, 1, direction(1))
    put(store, 2, None, missing_reason="empty text")
    put(store, 3, np.full(8, np.nan))
    put(store, 4, direction(4), embedder="older")
    put(store, 5, np.ones(7))
    found = checkup.look_into(file, **HASH)
    assert found.num_vectors == 1
    assert found.without_vector == {
        "empty text": 1,
        "zero, or not finite": 1,
        "embedded by older": 1,
        "of 7 dimensions, not 8": 1,
    }


def test_a_file_of_vectors_that_will_not_be_used_is_told_why(store, file):
    for number in range(4):
        put(store, number, direction(number))
    opened(store, max_exact=2, file=file.with_name("vectors.faiss")).save()
    assert checkup.look_into(file, **HASH).cache_problem is None
    cache = file.with_name("vectors.faiss")
    cache.write_bytes(cache.read_bytes()[:-40])
    assert "damaged" in checkup.look_into(file, **HASH).cache_problem


def test_an_older_schema_is_left_for_the_start_to_migrate(tmp_path):
    early = sqlite_utils.Database(tmp_path / "denizen.db")
    migrations.apply(early, stop_before="m004_vectors")
    early.close()
    assert checkup.look_into(tmp_path / "denizen.db", **HASH) is None


def test_an_index_that_lost_a_row_is_found(tmp_path):
    """``quick_check`` does not see it, and the row is not found by what the index is of."""
    file = tmp_path / "denizen.db"
    Store(file).close()
    assert checkup.look_at(file).num_pending == 0
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        sql = "SELECT * FROM sqlite_master WHERE name = 'episodes_by_tenant'"
        entry = db.execute(sql).fetchone()
        db.execute("DELETE FROM sqlite_master WHERE name = 'episodes_by_tenant'")
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        row = rows.encode(episode(tenant="acme"))
        sqlite_utils.Database(db)["episodes"].insert(row)
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", entry)
    with pytest.raises(StoreError, match="missing from index episodes_by_tenant"):
        checkup.look_at(file)
    assert checkup.versions_in(file) == []


def test_what_is_no_database_is_said(tmp_path):
    (tmp_path / "denizen.db").write_text("no database at all, but long enough to be one" * 9)
    with pytest.raises(StoreError, match=r"denizen\.db"):
        checkup.look_into(tmp_path / "denizen.db", **HASH)
