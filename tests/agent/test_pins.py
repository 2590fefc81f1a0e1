"""Which version a conversation stays with."""

import pytest

from agent.pins import Pins
from memory.types import CallStatus, VersionStatus
from tests import records

V1, V2 = "denizen-000001", "denizen-000002"
ASKED = {"model": "denizen", "messages": []}


@pytest.fixture
def pins(store) -> Pins:
    for number in (1, 2):
        store.versions.add(records.version(number), [])
    return Pins(store.episodes, store.versions)


async def record(store, adapter: str, number: int = 1, **fields) -> None:
    call = records.call(id=f"chatcmpl-{number}", adapter=adapter, request=ASKED)
    for name, value in fields.items():
        call = records.call(**{"id": call.id, "adapter": adapter, "request": ASKED, name: value})
    await store.episodes.record(records.episode(), [call], [None])


def go_live(store, version: str, kind: str = "promote") -> None:
    store.versions.move_pointer(
        expected=store.versions.live(), to=version, kind=kind, reason="a test", actor="test"
    )


def test_an_episode_without_calls_has_no_pin(pins):
    assert pins.version_of("ep_1") is None


async def test_an_episode_stays_with_the_version_of_its_last_call(store, pins):
    await record(store, V1, 1)
    await record(store, V2, 2)
    assert pins.version_of("ep_1") == V2
    assert pins.version_of("ep_2") is None


async def test_the_base_model_can_be_what_an_episode_stays_with(store, pins):
    await record(store, "base")
    assert pins.version_of("ep_1") == "base"


@pytest.mark.parametrize(
    "fields",
    [{"status": CallStatus.ERROR}, {"request": {"model": "denizen@000002", "messages": []}}],
)
async def test_a_failed_call_and_one_of_a_named_version_pin_nothing(store, pins, fields):
    await record(store, V1, 1)
    await record(store, V2, 2, **fields)
    assert pins.version_of("ep_1") == V1


async def test_a_call_that_was_broken_off_was_answered_all_the_same(store, pins):
    await record(store, V1, status=CallStatus.CANCELLED)
    assert pins.version_of("ep_1") == V1


async def test_a_retired_version_answers_its_conversations_on(store, pins):
    go_live(store, V1)
    await record(store, V1)
    go_live(store, V2)
    assert store.versions.get(V1).status is VersionStatus.RETIRED
    assert pins.version_of("ep_1") == V1


async def test_a_version_that_was_rolled_back_answers_no_conversation_any_more(store, pins):
    go_live(store, V1)
    go_live(store, V2)
    await record(store, V2)
    go_live(store, V1, "rollback")
    assert pins.version_of("ep_1") is None


@pytest.mark.parametrize("status", [VersionStatus.REJECTED, VersionStatus.TAINTED])
async def test_nor_does_one_that_was_rejected_or_tainted(store, pins, status):
    await record(store, V1)
    store.versions.set_status(V1, status)
    assert pins.version_of("ep_1") is None


async def test_a_call_that_runs_counts_before_its_record_is_written(store, pins):
    with pins.answering("ep_1", V1):
        assert pins.version_of("ep_1") == V1
    assert pins.version_of("ep_1") is None
