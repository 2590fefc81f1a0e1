"""From every earlier schema, with data in it, to the present one."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlite_utils

from memory import tokens
from memory.guidelines import Guidelines
from memory.schema import migrations
from memory.store import Store
from memory.types import Edge
from tests import records

NAMES = [migration.name for migration in migrations._migrations]
AT = "2026-01-01T12:00:00.000000+00:00"
VECTOR = np.arange(1, 5, dtype="<f4").tobytes()

ROWS: dict[str, list[dict[str, Any]]] = {
    "skills": [
        {"id": 1, "title": "sums", "created_at": AT, "policy": "learn", "task_key": "sums"}
        | {"centroid": VECTOR, "centroid_count": 1}
    ],
    "episodes": [
        {"id": f"ep_{n}", "created_at": AT, "source": "chat", "task_text": f"{n}?", "learn": 1}
        | {"revision": 2, "digested_revision": 2, "skill_id": 1, "session": "s"}
        for n in (1, 2)
    ],
    "calls": [
        {"id": f"c{n}", "episode_id": "ep_1", "created_at": AT, "adapter": "base", "learn": 1}
        | {"request": f'{{"messages":[{{"role":"user","content":"{n}?"}}]}}', "status": "ok"}
        | {"message": '{"role":"assistant","content":"3"}', "latency_ms": 1.5, "chain_key": f"k{n}"}
        | {"prompt_token_ids": tokens.encode_ids((1, 9, n))}
        | {"completion_token_ids": tokens.encode_ids((7, 2))}
        | {"sampler_logprobs": tokens.encode_logprobs((-0.5, None))}
        for n in (1, 2)
    ],
    "feedback": [
        {"id": "f1", "episode_id": "ep_1", "created_at": AT, "value": 1.0, "source": "api"}
    ],
    "grades": [
        {"id": 1, "episode_id": "ep_1", "created_at": AT, "kind": "check", "grader": "exact"}
        | {"version": "1", "value": 1.0, "explanation": "", "evidence": "{}"}
    ],
    "tasks": [
        {"id": "task_1", "created_at": AT, "messages": "[]", "grader": "exact", "skill_id": 1}
        | {"grader_config": "{}", "sampling": "{}", "split": "train", "origin": "episode:ep_1"}
    ],
    "cycles": [
        {"id": "cycle_1", "created_at": AT, "state": "promoted", "start_version": "base"}
        | {"reason": "told", "receipt": "{}"}
    ],
    "cycle_skills": [{"cycle_id": "cycle_1", "skill_id": 1}],
    "adapter_versions": [
        {"id": "denizen-000001", "parent": "base", "created_at": AT, "base_digest": "b"}
        | {"sha256": "a", "rank": 2, "alpha": 4, "target_modules": "[]", "status": "live"}
        | {"origin": "cycle", "size_bytes": 9}
    ],
    "version_episodes": [{"version_id": "denizen-000001", "episode_id": "ep_1"}],
    "pointer_moves": [
        {"created_at": AT, "from_version": "base", "to_version": "denizen-000001", "forced": 0}
        | {"kind": "promote", "reason": "", "actor": "gate"}
    ],
    "vectors": [
        {"episode_id": "ep_2", "embedder": "hash", "vector": VECTOR},
        {"episode_id": "ep_1", "embedder": "hash", "missing_reason": "empty text"},
    ],
}


def early(path: Path, stop_before: str) -> set[str]:
    """Write a database of an earlier schema, with a row of each kind; return its tables."""
    db = sqlite_utils.Database(path)
    migrations.apply(db, stop_before=stop_before)
    tables = set(db.table_names())
    db.execute("PRAGMA foreign_keys = OFF")
    for table, rows in ROWS.items():
        if table in tables:
            for row in rows:
                known = {column.name for column in db[table].columns}
                db[table].insert({name: value for name, value in row.items() if name in known})
    db.close()
    return tables


@pytest.mark.parametrize("stop_before", NAMES[1:])
def test_a_database_of_every_earlier_schema_keeps_its_rows(tmp_path, stop_before):
    path = tmp_path / "denizen.db"
    tables = early(path, stop_before)
    store = Store(path)
    read = store.database.read
    for table in tables & ROWS.keys():
        assert read(f"SELECT COUNT(*) AS n FROM {table}") == [{"n": len(ROWS[table])}], table
    calls = store.episodes.calls("ep_1")
    assert [call.prompt_token_ids for call in calls] == [(1, 9, 1), (1, 9, 2)]
    assert calls[0].sampler_logprobs == (-0.5, None)
    assert calls[1].request == {"messages": [{"role": "user", "content": "2?"}]}
    assert [one.value for one in store.episodes.feedback("ep_1")] == [1.0]
    assert store.episodes.get("ep_2").session == "s"
    if "tasks" in tables:
        assert store.skills.get(1).title == "sums"
        assert store.tasks.get("task_1").origin == "episode:ep_1"
    if "adapter_versions" in tables:
        assert store.versions.live() == "denizen-000001"
        assert store.versions.episodes_of("denizen-000001") == ["ep_1"]
        cycle = store.cycles.get("cycle_1")
        assert (cycle.num_resumes, cycle.was_stopped, cycle.base_digest) == (0, False, None)
    if "vectors" in tables:
        found = {row["episode_id"]: row["vector"] for row in read("SELECT * FROM vectors")}
        assert found == {"ep_1": None, "ep_2": VECTOR}
    assert read("PRAGMA foreign_key_check") in ([], _missing_skills(tables))
    store.close()


def _missing_skills(tables: set[str]) -> list[dict[str, Any]]:
    """Return what is to be found where episodes name skills that have no table yet."""
    if "skills" in tables:
        return []
    return [{"table": "episodes", "rowid": n, "parent": "skills", "fkid": 0} for n in (1, 2)]


def test_a_call_of_an_earlier_schema_can_be_gone_on_with(tmp_path):
    path = tmp_path / "denizen.db"
    early(path, NAMES[6])
    store = Store(path)
    before = store.episodes.call("c2")
    more = {"role": "user", "content": "and? " * 100}
    call = records.call(
        id="c3",
        parent_id="c2",
        edge=Edge.CONTINUATION,
        request={"messages": [*before.request["messages"], before.message, more]},
        prompt_token_ids=(*before.prompt_token_ids, *before.completion_token_ids, *range(99)),
    )

    async def record() -> None:
        await store.episodes.record(records.episode(), [call], [None])

    asyncio.run(record())
    assert store.episodes.calls("ep_1")[-1] == call
    store.close()


def test_a_migration_that_is_interrupted_leaves_the_schema_before_it(tmp_path, monkeypatch):
    path = tmp_path / "denizen.db"
    early(path, NAMES[7])
    db = sqlite_utils.Database(path)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(migrations, "_record_applied", stop)
    with pytest.raises(KeyboardInterrupt):
        migrations.apply(db)
    monkeypatch.undo()
    assert "base_id" not in {column.name for column in db["calls"].columns}
    db.close()
    store = Store(path)
    assert len(store.episodes.calls("ep_1")) == 2
    store.close()


def test_a_guideline_of_an_earlier_schema_is_the_first_version(tmp_path):
    path = tmp_path / "denizen.db"
    early(path, NAMES[12])
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO skill_guidelines VALUES (1, 'Count twice.', ?)", (AT,))
    connection.close()
    store = Store(path)
    [kept] = Guidelines(store.database).versions(1)
    assert (kept.version, kept.text, kept.author) == (1, "Count twice.", "admin")
    assert kept.created_at.isoformat(timespec="microseconds") == AT
    store.close()
