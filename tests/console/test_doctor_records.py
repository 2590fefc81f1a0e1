"""What the doctor finds in the database and among sealed versions."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import home as house
from agent import base_model
from agent.base_model import FOLDER
from learner.registry import Registry
from memory.store import Store
from tests.console.homes import Run, findings, settings
from tests.learner.adapters import FIT, write_adapter


def test_a_file_that_is_no_database_fails(home, denizen: Run):
    house.find(home)
    (home / "denizen.db").write_bytes(b"no database at all " * 100)
    found = findings(denizen("doctor", "--json"))
    assert "file is not a database" in found["database"]["detail"]
    assert "backup" in found["database"]["mend"]
    assert found["adapters"]["verdict"] == "ok"


def test_a_damaged_page_is_found(healthy, denizen: Run):
    file = healthy / "denizen.db"
    with sqlite3.connect(file) as connection:
        connection.execute("create table t (x)")
        connection.executemany("insert into t values (?)", [("x" * 900,)] * 100)
    connection.close()  # the last connection brings the pages from the log into the file
    content = bytearray(file.read_bytes())
    content[-8192:-4096] = b"\xff" * 4096  # a page of ``t``
    file.write_bytes(content)
    assert findings(denizen("doctor", "--json"))["database"]["verdict"] == "fail"


def test_a_database_of_a_newer_denizen_fails(healthy, denizen: Run):
    with sqlite3.connect(healthy / "denizen.db") as connection:
        connection.execute(
            "insert into _sqlite_migrations (migration_set, name, applied_at) "
            "values ('denizen', 'm999_from_the_future', '2030-01-01')"
        )
    connection.close()
    finding = findings(denizen("doctor", "--json"))["database"]
    assert "m999_from_the_future" in finding["detail"]
    assert finding["mend"] == "install the newest Denizen"


def seal_version(home: Path, status: str = "live") -> Path:
    """Seal a version of rank 2 for the home's model, with its row; return its weights."""
    store = Store(home / "denizen.db")
    source = home.parent / "adapter"
    source.mkdir()
    fit = replace(FIT, base_digest=base_model.base_digest(home / "models" / FOLDER))
    registry = Registry(store.versions, home / "adapters", fit)
    version = registry.seal(write_adapter(source), parent="base", cycle_id=None, episode_ids=[])
    store.database.write(lambda db: db.execute("UPDATE adapter_versions SET status = ?", (status,)))
    store.close()
    return home / "adapters" / version.id / "adapter_model.safetensors"


def test_sealed_versions_are_verified_byte_by_byte(healthy, denizen: Run):
    weights = seal_version(healthy)
    finding = findings(denizen("doctor", "--json"))["adapters"]
    assert (finding["verdict"], finding["detail"][:10]) == ("ok", "1 versions")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    detail = findings(result)["adapters"]["detail"]
    assert "denizen-000001" in detail
    assert "sha256" in detail


def test_a_version_that_the_database_knows_otherwise_fails(healthy, denizen: Run):
    seal_version(healthy)
    with sqlite3.connect(healthy / "denizen.db") as connection:
        connection.execute("UPDATE adapter_versions SET sha256 = 'another'")
    connection.close()
    assert "another" in findings(denizen("doctor", "--json"))["adapters"]["detail"]


def test_a_version_of_another_base_model_fails(healthy, denizen: Run):
    seal_version(healthy)
    (healthy / "models" / FOLDER / "model.safetensors").write_bytes(b"other weights")
    assert "base_digest" in findings(denizen("doctor", "--json"))["adapters"]["detail"]


def test_a_rank_above_the_engines_fails_naming_the_setting(healthy, denizen: Run):
    seal_version(healthy)
    settings(healthy, "[engine]\nmax_lora_rank = 1\n[learner]\nrank = 1")
    result = denizen("doctor", "--json")
    assert result.exit_code == 1
    assert "rank 2, above engine.max_lora_rank 1" in findings(result)["adapters"]["detail"]


def test_what_nothing_goes_back_to_may_be_broken(healthy, denizen: Run):
    seal_version(healthy, status="rejected").unlink()
    assert findings(denizen("doctor", "--json"))["adapters"]["verdict"] == "warn"


def test_a_folder_that_the_database_does_not_know_is_a_warning(healthy, denizen: Run):
    (healthy / "adapters/denizen-000009").mkdir(parents=True)
    finding = findings(denizen("doctor", "--json"))["adapters"]
    assert (finding["verdict"], "denizen-000009" in finding["detail"]) == ("warn", True)
