import dataclasses
import threading

import pytest

from learner.adapter_files import seal as seal_folder
from learner.adapter_format import inspect
from learner.registry import ORPHAN_PREFIX, Registry
from memory.errors import AdapterError, ConflictError, NotFoundError, StoreError, UnavailableError
from memory.store import Store
from memory.types import VersionStatus
from tests import records
from tests.learner.adapters import (
    BASE_SHAPES,
    FIT,
    adapter_config,
    adapter_tensors,
    write_adapter,
)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "adapters"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "step-02"
    folder.mkdir()
    return write_adapter(folder)


def registry_of(store, root, **changes) -> Registry:
    return Registry(store.versions, root, dataclasses.replace(FIT, **changes))


def seal(registry, source, **fields):
    given = {"parent": "base", "cycle_id": None}
    return registry.seal(source, **given | {"episode_ids": ["ep_1", "ep_2"]} | fields)


def test_a_sealed_version_is_a_candidate_with_what_taught_it(store, root, source):
    registry = registry_of(store, root)
    version = seal(registry, source)
    assert store.versions.get("denizen-000001") == version
    assert (version.status, version.rank) == (VersionStatus.CANDIDATE, 2)
    assert store.versions.episodes_of(version.id) == ["ep_1", "ep_2"]
    assert registry.verified_path(version.id) == root / "denizen-000001"
    assert registry.next_name() == "denizen-000002"


def test_a_changed_byte_is_found(store, root, source):
    registry = registry_of(store, root)
    seal(registry, source)
    weights = root / "denizen-000001" / "adapter_model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(AdapterError, match="denizen-000001"):
        registry.verified_path("denizen-000001")


def test_a_version_of_another_base_model_is_refused(store, root, source):
    seal(registry_of(store, root), source)
    with pytest.raises(AdapterError, match="base"):
        registry_of(store, root, base_digest="e" * 64).verified_path("denizen-000001")


def test_an_adapter_that_does_not_fit_the_base_is_never_sealed(store, root, source):
    other = {name: (rows + 1, columns) for name, (rows, columns) in BASE_SHAPES.items()}
    with pytest.raises(AdapterError):
        seal(registry_of(store, root, base_shapes=other), source)
    assert store.versions.all() == []
    assert list(root.iterdir()) == []


def test_a_sealed_folder_without_a_row_is_set_aside_and_not_deleted(store, root, source, tmp_path):
    seal(registry_of(store, root), source)
    empty = Store(tmp_path / "another.db")
    [orphan] = registry_of(empty, root).swept
    empty.close()
    assert not orphan.exists()
    [kept] = root.iterdir()
    assert kept.name.startswith(f"{ORPHAN_PREFIX}denizen-000001-")
    assert (kept / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("name", ["denizen-000009", "../adapters", "base"])
def test_a_version_without_a_row_is_not_found(store, root, name):
    with pytest.raises(NotFoundError):
        registry_of(store, root).verified_path(name)


def adopt(registry, tensors=None, config=None, **options):
    return registry.adopt(write_adapter(registry.stage(), tensors, config), **options)


def scaled(factor):
    return {name: factor * tensor for name, tensor in adapter_tensors().items()}


def test_an_adopted_version_is_the_next_candidate_on_base_with_its_reason(store, root, source):
    registry = registry_of(store, root)
    seal(registry, source)
    version = adopt(registry, scaled(2), reason="trained elsewhere")
    assert store.versions.get("denizen-000002") == version
    assert (version.status, version.parent) == (VersionStatus.CANDIDATE, "base")
    assert (version.origin, version.cycle_id) == ("import", None)
    assert version.reason == "trained elsewhere"
    assert registry.verified_path(version.id) == root / "denizen-000002"
    assert sorted(path.name for path in root.iterdir()) == ["denizen-000001", "denizen-000002"]


def test_the_same_weights_are_no_second_version_but_with_another_alpha_they_are(store, root):
    registry = registry_of(store, root)
    adopt(registry)
    with pytest.raises(ConflictError, match=r"denizen-000001 has these weights.*is candidate"):
        adopt(registry)
    assert adopt(registry, config=adapter_config(lora_alpha=8)).id == "denizen-000002"
    assert len(list(root.iterdir())) == 2


def test_what_was_learned_here_is_not_imported_again(store, root, source):
    registry = registry_of(store, root)
    seal(registry, source)
    with pytest.raises(ConflictError, match="denizen-000001"):
        adopt(registry)


def test_what_may_not_be_adopted_leaves_nothing(store, root):
    registry = registry_of(store, root)
    for config in (
        adapter_config(r=3),
        adapter_config(base_model_name_or_path="acme/other"),
        adapter_config(modules_to_save=["lm_head"]),
    ):
        with pytest.raises(AdapterError):
            adopt(registry, config=config)
    with pytest.raises(AdapterError, match=r"rank 8, expected at most 4"):
        adopt(registry, adapter_tensors(rank=8), adapter_config(r=8))
    assert (list(root.iterdir()), store.versions.all()) == ([], [])


def test_versions_made_at_the_same_time_get_names_of_their_own(store, root, source):
    registry = registry_of(store, root)
    threads = [threading.Thread(target=seal, args=(registry, source)) for _ in range(8)]
    threads += [
        threading.Thread(target=adopt, args=(registry, scaled(number))) for number in range(2, 10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = [version.id for version in store.versions.all()]
    assert names == [f"denizen-{number:06d}" for number in range(16, 0, -1)]
    assert registry.problems() == []


def test_of_many_imports_of_the_same_weights_one_becomes_a_version(store, root):
    registry = registry_of(store, root)
    ended = []

    def run():
        try:
            ended.append(adopt(registry).id)
        except ConflictError as error:
            ended.append(type(error))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ended, key=str) == [ConflictError] * 7 + ["denizen-000001"]


def test_a_version_whose_row_cannot_be_written_leaves_its_name_free(store, root, monkeypatch):
    registry = registry_of(store, root)

    def fail(*_):
        raise StoreError("cannot write the database: disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store.versions, "add", fail)
        with pytest.raises(StoreError):
            adopt(registry)
    assert list(root.iterdir()) == []
    assert adopt(registry).id == "denizen-000001"


@pytest.mark.parametrize("function", ["os.fsync", "os.replace", "tempfile.mkdtemp"])
def test_a_full_disk_is_said_at_every_step_and_leaves_nothing(store, root, function, monkeypatch):
    registry = registry_of(store, root)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(function, full)
        with pytest.raises(UnavailableError, match="No space left on device"):
            adopt(registry)
    assert (list(root.iterdir()), store.versions.all()) == ([], [])
    assert adopt(registry).id == "denizen-000001"


def test_a_rank_above_an_engine_that_was_set_lower_since_is_refused_by_name(store, root, source):
    seal(registry_of(store, root), source)
    with pytest.raises(AdapterError, match=r"denizen-000001 has rank 2, expected at most 1"):
        registry_of(store, root, max_rank=1).verified_path("denizen-000001")


def test_all_is_verified_and_what_belongs_to_nobody_is_named(store, root, source, tmp_path):
    registry = registry_of(store, root)
    seal(registry, source)
    assert registry.problems() == []
    store.versions.add(records.version(7), [])
    stray = write_adapter(registry.stage())
    seal_folder(stray, root, "denizen-000009", inspect(stray), base_digest="b", parent="base")
    (root / "notes\n.txt").touch()
    (root / "denizen-000001" / "adapter_model.bin").touch()
    registry.stage()  # an import that arrives just now is no problem
    damaged, gone, stray_folder, stray_file = registry.problems()
    assert damaged.startswith("denizen-000001 is not what was sealed: expected the files")
    assert gone == "denizen-000007 is not what was sealed: expected a folder, found none"
    assert stray_folder.startswith("'denizen-000009' is in no database")
    assert stray_file.startswith(r"'notes\n.txt' is in no database")
