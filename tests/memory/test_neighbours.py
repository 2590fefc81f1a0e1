import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory import rows
from memory.neighbours import GradedNeighbour, Neighbours
from memory.store import Store
from memory.types import EpisodeSource
from tests import records

D = 4


@pytest.fixture
def skill_store(store: Store) -> Store:
    store.database.write(
        lambda db: db.execute(
            """INSERT INTO skills (id, title, created_at, policy, centroid_count)
                VALUES (1, 'one', '', 'learn', 0), (2, 'two', '', 'learn', 0)"""
        )
    )
    return store


def put(store: Store, id: str, vector: Any, outcome: float | None = 0.5, **fields: Any) -> None:
    embedder = fields.pop("embedder", "hash")
    episode = dataclasses.replace(records.episode(id=id, skill_id=1), **fields)
    row = rows.encode(episode) | {"outcome_value": outcome}
    blob = None if vector is None else np.asarray(vector, dtype="<f4").tobytes()

    def write(db: Any) -> None:
        rows.insert(db, "episodes", row)
        db.execute(
            "INSERT INTO vectors (episode_id, embedder, vector) VALUES (?, ?, ?)",
            (id, embedder, blob),
        )

    store.database.write(write)


def nearest(store: Store, ids: Sequence[str], limit: int) -> dict[str, list[GradedNeighbour]]:
    neighbours = Neighbours(store.database, embedder_id="hash")
    return neighbours.nearest(ids, until=records.later(60), limit=limit)


def near(store: Store, id: str = "asked", limit: int = 9) -> list[str]:
    found = nearest(store, [id], limit)
    return [one.episode_id for one in found[id]]


def test_the_nearest_come_first_with_distance_and_outcome(skill_store):
    put(skill_store, "asked", [1, 0, 0, 0])
    put(skill_store, "far", [0, 2, 0, 0], 1.0)
    put(skill_store, "near", [3, 4, 0, 0], 0.25)
    found = nearest(skill_store, ["asked"], 5)
    # 1 - cos((1, 0), (3, 4)) = 1 - 3 / 5; 1 - cos((1, 0), (0, 2)) = 1
    assert [(one.episode_id, round(one.distance, 6), one.outcome) for one in found["asked"]] == [
        ("near", 0.4, 0.25),
        ("far", 1.0, 1.0),
    ]
    assert near(skill_store, limit=1) == ["near"]


@pytest.mark.parametrize(
    "fields",
    [
        {"outcome": None},
        {"skill_id": 2},
        {"skill_id": None},
        {"session": "s"},
        {"tenant": "acme"},
        {"source": EpisodeSource.PRACTICE},
        {"learn": False},
        {"withheld": "control_tokens"},
        {"embedder": "older"},
        {"created_at": records.later(61)},
    ],
)
def test_what_may_not_be_compared_is_left_out(skill_store, fields):
    put(skill_store, "asked", [1, 0, 0, 0], session="s")
    put(skill_store, "other", [1, 0, 0, 0], **fields)
    put(skill_store, "fine", [0, 1, 0, 0], session="another")
    assert near(skill_store) == ["fine"]


@pytest.mark.parametrize("vector", [None, [0, 0, 0, 0], [np.nan, 0, 0, 0], [1, 0, 0, 0, 0]])
def test_a_vector_that_points_nowhere_is_nobodys_neighbour(skill_store, vector):
    put(skill_store, "asked", [1, 0, 0, 0])
    put(skill_store, "b_fine", [0, 1, 0, 0])
    put(skill_store, "other", vector)
    assert near(skill_store) == ["b_fine"]
    assert near(skill_store, "other") == []


def test_episodes_without_a_session_may_be_compared(skill_store):
    put(skill_store, "asked", [1, 0, 0, 0])
    put(skill_store, "other", [1, 0, 0, 0])
    assert near(skill_store) == ["other"]


def test_an_ungraded_episode_has_neighbours_of_its_own_tenant_only(skill_store):
    put(skill_store, "asked", [1, 0, 0, 0], None, tenant="acme")
    put(skill_store, "ours", [0, 1, 0, 0], tenant="acme")
    put(skill_store, "theirs", [1, 0, 0, 0], tenant="other")
    put(skill_store, "nobodys", [1, 0, 0, 0])
    assert near(skill_store) == ["ours"]
    assert near(skill_store, "unknown") == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=2, max_size=25))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_agrees_with_comparing_all_one_by_one(monkeypatch, tmp_path_factory, drawn):
    monkeypatch.setattr("memory.neighbours.CHUNK", 4)
    store = Store(tmp_path_factory.mktemp("store") / "denizen.db")
    store.database.write(
        lambda db: db.execute(
            """INSERT INTO skills (id, title, created_at, policy, centroid_count)
                VALUES (1, 'one', '', 'learn', 0), (2, 'two', '', 'learn', 0)"""
        )
    )
    vectors = np.random.default_rng(len(drawn)).normal(size=(len(drawn), D))
    for n, (session, tenant) in enumerate(drawn):
        fields = {"session": f"s{session}" if session else None, "tenant": f"t{tenant}"}
        put(store, f"ep_{n:02d}", vectors[n], n / 100, skill_id=n % 2 + 1, **fields)
    ids = [f"ep_{n:02d}" for n in range(len(drawn))]
    found = nearest(store, ids, 3)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for n, (session, tenant) in enumerate(drawn):
        others = [
            (1 - float(units[n] @ units[m]), m)
            for m, (their_session, their_tenant) in enumerate(drawn)
            if m != n and m % 2 == n % 2 and tenant == their_tenant
            if not (session and session == their_session)
        ]
        wanted = [m / 100 for _, m in sorted(others)[:3]]
        assert [one.outcome for one in found[f"ep_{n:02d}"]] == wanted
    store.close()
