import pytest

from learner.registry import ORPHAN_PREFIX, Registry
from memory.errors import AdapterError, NotFoundError
from memory.store import Store
from memory.types import VersionStatus
from tests.learner.adapters import BASE_SHAPES, write_adapter


@pytest.fixture
def root(tmp_path):
    return tmp_path / "adapters"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "step-02"
    folder.mkdir()
    return write_adapter(folder)


def registry_of(store, root, digest="d" * 64) -> Registry:
    return Registry(store.versions, root, base_digest=digest, base_shapes=BASE_SHAPES)


def seal(registry, source, **fields):
    given = {"name": registry.next_name(), "parent": "base", "cycle_id": None}
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
        registry_of(store, root, digest="e" * 64).verified_path("denizen-000001")


def test_an_adapter_that_does_not_fit_the_base_is_never_sealed(store, root, source):
    other = {name: (rows + 1, columns) for name, (rows, columns) in BASE_SHAPES.items()}
    registry = Registry(store.versions, root, base_digest="d" * 64, base_shapes=other)
    with pytest.raises(AdapterError):
        seal(registry, source)
    assert store.versions.all() == []


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
