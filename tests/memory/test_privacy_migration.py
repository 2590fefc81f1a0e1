"""The schema before tenants and erasure, with data, becomes the present one."""

from sqlite_utils import Database

from memory.schema import migrations
from memory.store import Store


def test_records_of_the_schema_before_stay_as_they_are(tmp_path):
    path = tmp_path / "denizen.db"
    db = Database(path)
    migrations.apply(db, stop_before="m009_privacy")
    db.execute(
        """INSERT INTO episodes (id, created_at, source, task_text, learn, revision,
            digested_revision)
            VALUES ('ep_1', '2026-01-01T12:00:00+00:00', 'chat', 'hi', 1, 1, 1)"""
    )
    db.execute(
        """INSERT INTO calls
            (id, episode_id, created_at, adapter, request, status, latency_ms, learn)
            VALUES ('c1', 'ep_1', '2026-01-01T12:00:00+00:00', 'base', '{}', 'ok', 1.0, 1)"""
    )
    db.conn.commit()
    db.close()
    store = Store(path)
    episode = store.episodes.get("ep_1")
    [call] = store.episodes.calls("ep_1")
    assert (episode.tenant, episode.withheld, episode.learn) == (None, None, True)
    assert (call.withheld, call.recalled) == (None, None)
    assert store.versions.taints() == {}
    store.close()
