"""Answers that were safe when their process died, and are recorded by the next one."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from memory.errors import StoreError
from memory.journal import Journal
from memory.recording import Answered, CallKeys, read_spelled, spell
from memory.store import Store
from memory.types import Call
from tests.records import call, episode

KEYS = CallKeys(answer="a" * 32, system="b" * 32, request="c" * 32, quotes=[("user", "x", 3, "d")])


class Killed:
    """A store whose writer stands still, and what lies on disk when its process is killed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = Store(home / "denizen.db")
        self._let_go = threading.Event()

    def hold_writer(self) -> None:
        self.store.database.submit(lambda db: self._let_go.wait(10))

    def next_store(self, name: str = "next") -> Store:
        """Open what a kill would leave at this moment."""
        copied = self.home.parent / name
        shutil.copytree(self.home, copied)
        return Store(copied / "denizen.db")

    def close(self) -> None:
        self._let_go.set()
        self.store.close()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    home = tmp_path / "home"
    home.mkdir()
    found = Killed(home)
    yield found
    found.close()


async def test_what_was_safe_is_recorded_by_the_next_process_as_it_was(killed):
    given = call(
        prompt_token_ids=(1, 9, 8),
        completion_token_ids=(33, 2),
        sampler_logprobs=(-0.41, None),
        usage={"total_tokens": 5},
    )
    killed.hold_writer()
    kept = killed.store.episodes.keep(episode(reference="12"), [given], [KEYS])
    assert kept.safe.done()
    store = killed.next_store()
    found = store.episodes.call(given.id)
    for name in ("created_at", "request", "message", "finish_reason", "status", "usage"):
        assert getattr(found, name) == getattr(given, name)
    assert [*found.prompt_token_ids] == [1, 9, 8]
    assert [*found.sampler_logprobs] == [pytest.approx(-0.41), None]
    assert store.episodes.get(given.episode_id).reference == "12"
    assert [one.call_id for one in store.episodes.finder.find_answered(["a" * 32], limit=9)] == [
        given.id
    ]
    store.close()


async def test_what_stands_in_the_file_already_is_not_recorded_again(tmp_path):
    store = Store(tmp_path / "denizen.db")
    await store.episodes.record(episode(), [call(id="one")], [None])
    store.close()
    journal = Journal(tmp_path / "denizen.db-answers")  # killed between commit and retiring
    journal.clear()
    for id in ("one", "two"):
        assert journal.append(spell_of(call(id=id))) is not None
    store = Store(tmp_path / "denizen.db")
    assert [one.id for one in store.episodes.calls("ep_1")] == ["one", "two"]
    store.close()


async def test_the_next_process_takes_up_what_another_could_not(killed):
    killed.hold_writer()
    for number in range(3):
        killed.store.episodes.keep(episode(), [call(id=f"{number}")], [None])
    first = killed.next_store()
    first.close()
    again = Store(first.database.path)
    assert again.episodes.counts()["calls"] == 3
    again.close()


async def test_entries_that_cannot_be_read_stop_the_start_and_stay(tmp_path):
    journal = Journal(tmp_path / "denizen.db-answers")
    journal.clear()
    journal.append(b'{"of": "another version"}')
    for _ in range(2):
        with pytest.raises(StoreError, match="another version"):
            Store(tmp_path / "denizen.db")


def spell_of(one: Call) -> bytes:
    entry = spell(answered(one))
    assert entry is not None
    return entry


def answered(one: Call) -> Answered:
    return Answered(episode(), [one], [KEYS])


def test_a_spelled_answer_reads_as_it_was():
    given = answered(call(prompt_token_ids=[1], completion_token_ids=[2], sampler_logprobs=[-0.1]))
    assert read_spelled(spell_of(given.calls[0])).calls[0] == given.calls[0]


@pytest.mark.parametrize("message", [{"role": "assistant", "content": "\ud800"}])
def test_what_json_cannot_say_is_not_spelled(message):
    assert spell(answered(call(message=message))) is None
