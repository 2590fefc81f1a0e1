import asyncio

import pytest

from learner.pointer import Pointer
from memory.errors import (
    AdapterError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from memory.types import CycleState, VersionStatus
from tests import records

PASSED = {"verdict": "promote", "reasons": ["gain"]}


class FakePublisher:
    """Publishes when let, and remembers what moved."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        self.may_publish = asyncio.Event()
        self.may_publish.set()
        self.broken: set[str] = set()
        self.is_up = True

    async def publish(self, version: str) -> None:
        await self.may_publish.wait()
        if version in self.broken:
            raise AdapterError(f"{version} has no effect")

    def is_published(self, version: str) -> bool:
        return self.is_up

    def move(self, version: str, *, previous: str) -> None:
        self.moved.append(version)
        self.previous = previous


@pytest.fixture
def publisher():
    return FakePublisher()


@pytest.fixture
def pointer(store, publisher):
    return Pointer(store.versions, store.cycles, publisher)


def add(store, number, *, gate=PASSED, start="base", state=CycleState.PROPOSED) -> str:
    """Store a candidate with a cycle of its own; return its name."""
    cycle = records.cycle(id=f"cycle_{number}", start_version=start)
    store.cycles.start(cycle)
    if gate:
        store.cycles.set_gate(cycle.id, gate)
    store.cycles.end(cycle.id, state, "a test", receipt={})
    version = records.version(number, cycle_id=cycle.id, sha256=str(number) * 64)
    store.versions.add(version, [])
    return version.id


async def test_a_version_that_passed_its_gate_goes_live_and_its_cycle_says_so(store, pointer):
    name = add(store, 1)
    move = await pointer.promote(name, actor="test")
    assert (move.moved, move.from_version, pointer.live) == (True, "base", name)
    assert store.cycles.get("cycle_1").state is CycleState.PROMOTED


async def test_promoting_what_is_live_moves_nothing(store, pointer):
    name = add(store, 1)
    await pointer.promote(name, actor="test")
    assert (await pointer.promote(name, actor="test")).moved is False
    assert len(store.versions.moves()) == 1


@pytest.mark.parametrize("options", [{}, {"force": True}, {"reason": "because"}])
async def test_without_a_gate_force_and_a_reason_are_needed(store, pointer, options):
    name = add(store, 1, gate=None)
    with pytest.raises(InvalidRequestError, match="force"):
        await pointer.promote(name, actor="test", **options)
    await pointer.promote(name, actor="test", force=True, reason="because")
    assert store.versions.moves()[0].forced


async def test_what_a_person_rejected_needs_force_though_its_gate_passed(store, pointer):
    name = add(store, 1)
    await pointer.reject(name, reason="no")
    with pytest.raises(InvalidRequestError):
        await pointer.promote(name, actor="test")
    assert store.cycles.get("cycle_1").state is CycleState.REJECTED


async def test_a_version_that_cannot_answer_leaves_everything_as_it_was(store, pointer, publisher):
    name = add(store, 1)
    publisher.broken.add(name)
    with pytest.raises(AdapterError):
        await pointer.promote(name, actor="test")
    assert (pointer.live, publisher.moved) == ("base", [])
    assert store.versions.get(name).status is VersionStatus.CANDIDATE


async def test_rolling_back_twice_goes_back_twice_and_skips_what_was_rolled_back(store, pointer):
    names = [add(store, number) for number in (1, 2, 3)]
    for name in names:
        await pointer.promote(name, actor="test")
    went_to = [(await pointer.rollback(actor="test", reason="x")).to_version for _ in range(3)]
    assert went_to == [names[1], names[0], "base"]
    with pytest.raises(ConflictError, match="nothing to roll back"):
        await pointer.rollback(actor="test", reason="x")


async def test_what_a_rollback_would_go_to_is_kept_ready_after_a_rollback_too(
    store, pointer, publisher
):
    names = [add(store, number) for number in (1, 2, 3)]
    for name in names:
        await pointer.promote(name, actor="test")
    assert publisher.previous == names[1]
    await pointer.rollback(actor="test", reason="x")
    assert publisher.previous == names[0]
    await pointer.rollback(actor="test", reason="x")
    assert publisher.previous == "base"


async def test_an_engine_that_goes_down_after_publishing_leaves_both_pointers_where_they_were(
    store, pointer, publisher
):
    publisher.is_up = False
    name = add(store, 1)
    with pytest.raises(UnavailableError, match="went down"):
        await pointer.promote(name, actor="test")
    assert (pointer.live, publisher.moved, store.versions.moves()) == ("base", [], [])


async def test_a_version_promoted_after_a_rollback_goes_back_past_the_one_rolled_back(
    store, pointer
):
    one, two, three = (add(store, number) for number in (1, 2, 3))
    await pointer.promote(one, actor="test")
    await pointer.promote(two, actor="test")
    await pointer.rollback(actor="test", reason="two is bad")
    await pointer.promote(three, actor="test")
    assert (await pointer.rollback(actor="test", reason="x")).to_version == one


async def test_a_rollback_never_goes_to_what_was_never_live(store, pointer):
    live, never = add(store, 1), add(store, 2, gate=None)
    await pointer.promote(live, actor="test")
    with pytest.raises(ConflictError, match="never live"):
        await pointer.rollback(actor="test", reason="x", to=never)
    with pytest.raises(NotFoundError):
        await pointer.rollback(actor="test", reason="x", to="denizen-000099")
    assert pointer.live == live


async def test_a_rejection_while_an_approval_loads_comes_too_late_and_says_so(
    store, pointer, publisher
):
    name = add(store, 1)
    publisher.may_publish.clear()
    approval = asyncio.create_task(pointer.approve(name, actor="test", reason="yes"))
    await asyncio.sleep(0)
    rejection = asyncio.create_task(pointer.reject(name, reason="no"))
    await asyncio.sleep(0)
    publisher.may_publish.set()
    assert (await approval).moved
    with pytest.raises(ConflictError, match="is live, no candidate"):
        await rejection
    assert pointer.live == name


async def test_of_two_approvals_one_is_a_conflict(store, pointer):
    name = add(store, 1)
    approvals = [pointer.approve(name, actor="test", reason="yes") for _ in range(2)]
    done = await asyncio.gather(*approvals, return_exceptions=True)
    assert [type(one).__name__ for one in done] == ["Move", "ConflictError"]


async def test_an_approval_of_what_was_proven_against_another_version_is_stale(store, pointer):
    first, second = add(store, 1), add(store, 2)  # both proven against base
    await pointer.approve(first, actor="test", reason="yes")
    with pytest.raises(ConflictError, match="proven against base, but denizen-000001 is live"):
        await pointer.approve(second, actor="test", reason="yes")
    assert pointer.live == first


async def test_an_approval_of_other_bytes_changes_nothing(store, pointer):
    name = add(store, 1)
    with pytest.raises(ConflictError, match="sha256"):
        await pointer.approve(name, actor="test", reason="yes", sha256="0" * 64)
    assert pointer.live == "base"


async def test_a_blank_reason_is_none(store, pointer):
    name = add(store, 1, gate=None)
    with pytest.raises(InvalidRequestError, match="force"):
        await pointer.promote(name, actor="test", force=True, reason=" \n")
    assert store.versions.moves() == []


async def test_promoting_a_forced_version_that_is_live_asks_for_nothing(store, pointer):
    name = add(store, 1, gate=None)
    await pointer.promote(name, actor="test", force=True, reason="because")
    assert (await pointer.promote(name, actor="test")).moved is False
    assert len(store.versions.moves()) == 1
