import pytest

from memory.guidelines import Guidelines
from memory.store import Store
from memory.tenants import EVERYTHING
from memory.types import utc_now
from tests.memory.sorting import Desk


@pytest.fixture
def desk(store: Store) -> Desk:
    desk = Desk(store)
    desk.record("sum 1", "sum 2", "sum 3", "word 1", "word 2", "word 3")
    return desk


@pytest.fixture
def guidelines(desk: Desk) -> Guidelines:
    return Guidelines(desk.store.database)


def test_earlier_guidelines_are_kept_with_time_and_author(guidelines: Guidelines) -> None:
    began = utc_now()
    guidelines.set(1, "Count twice.", author="ada")
    guidelines.set(1, "  Count thrice.\n")
    assert guidelines.get(1) == "Count thrice."
    kept = guidelines.versions(1)
    assert [(one.version, one.text, one.author) for one in kept] == [
        (1, "Count twice.", "ada"),
        (2, "Count thrice.", "admin"),
    ]
    assert began <= kept[0].created_at <= kept[1].created_at <= utc_now()


def test_a_withdrawn_guideline_is_in_force_no_more_and_stays_known(
    desk: Desk, guidelines: Guidelines
) -> None:
    guidelines.set(1, "Count twice.")
    assert _is_fixed(desk)
    guidelines.set(1, " ")
    assert guidelines.get(1) is None
    assert [one.text for one in guidelines.versions(1)] == ["Count twice.", ""]
    assert not _is_fixed(desk)


def test_a_parts_guidelines_follow_upon_those_that_the_whole_had_withdrawn(
    desk: Desk, guidelines: Guidelines
) -> None:
    guidelines.set(1, "Count twice.")
    guidelines.set(1, "")
    guidelines.set(2, "Spell it.")
    desk.store.skills.merge(2, into=1)
    assert guidelines.get(1) == "Spell it."
    told = [(one.version, one.text) for one in guidelines.versions(2)]
    assert told == [(1, "Count twice."), (2, ""), (3, "Spell it.")]


def _is_fixed(desk: Desk) -> bool:
    return desk.store.skills.rows_of(EVERYTHING)[0].is_fixed
