"""Which versions had learned from what was erased."""

import pytest

from memory.errors import ConflictError
from memory.types import VersionStatus
from tests.records import version


async def test_versions_that_learned_from_it_are_tainted_and_so_are_their_descendants(home):
    versions = home.store.versions
    await home.record(1)
    practised = await home.practise(1, of=1)
    versions.add(version(1), ["ep_other"])
    versions.add(version(2, parent="denizen-000001"), [practised])
    versions.add(version(3, parent="denizen-000002"), [])
    versions.add(version(4), ["ep_other"])
    versions.move_pointer(
        expected="base", to="denizen-000002", kind="promote", reason="r", actor="a"
    )
    told = await home.erase(episode="ep_1")
    found = {one.version: one for one in told["tainted"]}
    assert set(found) == {"denizen-000002", "denizen-000003"}
    assert found["denizen-000002"].is_live
    assert found["denizen-000002"].num_episodes == 1
    assert found["denizen-000003"].inherited_from == "denizen-000002"
    assert {one.clean_ancestor for one in found.values()} == {"denizen-000001"}
    assert versions.get("denizen-000002").status is VersionStatus.LIVE  # until a person decides
    assert versions.get("denizen-000003").status is VersionStatus.TAINTED
    assert set(versions.taints()) == set(found)
    versions.move_pointer(
        expected="denizen-000002", to="denizen-000004", kind="promote", reason="r", actor="a"
    )
    assert versions.get("denizen-000002").status is VersionStatus.TAINTED
    with pytest.raises(ConflictError):
        versions.move_pointer(
            expected="denizen-000004", to="denizen-000002", kind="rollback", reason="r", actor="a"
        )


async def test_a_version_sealed_after_the_erasure_is_tainted_at_once(home):
    versions = home.store.versions
    await home.record(1)
    await home.erase(episode="ep_1")
    versions.add(version(1), ["ep_1"])
    versions.add(version(2, parent="denizen-000001"), [])
    assert versions.get("denizen-000001").status is VersionStatus.TAINTED
    assert versions.get("denizen-000002").status is VersionStatus.TAINTED
