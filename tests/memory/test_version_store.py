import pytest

from memory.errors import ConflictError, NotFoundError
from memory.store import Store
from memory.types import VersionStatus, utc_now
from tests import records


@pytest.fixture
def versions(tmp_path):
    store = Store(tmp_path / "denizen.db")
    for number in (1, 2):
        store.versions.add(records.version(number), [f"ep_{number}"])
    yield store.versions
    store.close()


def move(versions, to, kind="promote", expected=None):
    versions.move_pointer(
        expected=expected or versions.live(), to=to, kind=kind, reason="a test", actor="test"
    )


def test_base_is_live_before_the_first_move(versions):
    assert versions.live() == "base"


def test_a_move_changes_what_is_live_and_both_statuses(versions):
    move(versions, "denizen-000001")
    move(versions, "denizen-000002")
    assert versions.live() == "denizen-000002"
    assert versions.get("denizen-000001").status is VersionStatus.RETIRED
    assert versions.get("denizen-000002").status is VersionStatus.LIVE


def test_a_rollback_marks_what_it_leaves(versions):
    move(versions, "denizen-000001")
    move(versions, "base", kind="rollback")
    assert versions.live() == "base"
    assert versions.get("denizen-000001").status is VersionStatus.ROLLED_BACK


def test_a_move_that_expects_something_else_changes_nothing(versions):
    move(versions, "denizen-000001")
    with pytest.raises(ConflictError, match="denizen-000001 has become live"):
        move(versions, "denizen-000002", expected="base")
    assert versions.live() == "denizen-000001"
    assert len(versions.moves()) == 1


def test_a_tainted_version_never_becomes_live_again(versions):
    versions.set_status("denizen-000001", VersionStatus.TAINTED)
    with pytest.raises(ConflictError, match="tainted"):
        move(versions, "denizen-000001")
    assert versions.live() == "base"


def test_what_was_live_when_is_answered(versions):
    before = utc_now()
    move(versions, "denizen-000001")
    assert versions.live_at(before) == "base"
    assert versions.live_at(utc_now()) == "denizen-000001"


def test_what_taught_a_version_is_kept(versions):
    assert versions.episodes_of("denizen-000002") == ["ep_2"]


@pytest.mark.parametrize(
    "name", ["../x", "denizen-000009", "", "denizen-000001 ", "denizen-٠٠٠٠٠١"]
)
def test_a_name_that_is_no_version_is_not_found(versions, name):
    with pytest.raises(NotFoundError):
        versions.get(name)
