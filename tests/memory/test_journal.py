import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory import journal as journals
from memory.journal import Journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers"


def sizes(path: Path) -> list[int]:
    return [path.with_name(f"{path.name}-{number}").stat().st_size for number in (0, 1)]


def opened(path: Path) -> Journal:
    journal = Journal(path)
    journal.clear()
    return journal


def left(path: Path) -> list[bytes]:
    """Read what another process finds."""
    return Journal(path).left()


def test_entries_that_were_not_retired_are_found_in_their_order(path):
    journal = opened(path)
    tickets = [journal.append(f"{number}".encode()) for number in range(5)]
    journal.retire(tickets[1:2])
    assert left(path) == [b"0", b"1", b"2", b"3", b"4"]  # a file is emptied as a whole


def test_what_was_retired_is_gone_from_the_files(path):
    journal = opened(path)
    journal.retire([journal.append(b"secret")])
    assert sizes(path) == [0, 0]
    later = journal.append(b"later")
    assert later is not None
    assert left(path) == [b"later"]


def test_under_constant_load_the_files_take_turns_and_stay_small(path, monkeypatch):
    monkeypatch.setattr(journals, "MAX_FILE_BYTES", 1_000)
    journal, waiting = opened(path), []
    for number in range(500):
        ticket = journal.append(b"%0100d" % number)
        assert ticket is not None
        waiting.append(ticket)
        if len(waiting) > 4:
            journal.retire([waiting.pop(0)])
        assert sum(sizes(path)) < 4_000
    assert [int(entry) for entry in left(path)][-4:] == [496, 497, 498, 499]


def test_a_journal_that_nobody_empties_refuses_more(path, monkeypatch):
    monkeypatch.setattr(journals, "MAX_FILE_BYTES", 1_000)
    journal = opened(path)
    found = [journal.append(b"x" * 100) for _ in range(50)]
    assert None in found
    assert left(path) == [b"x" * 100] * (50 - found.count(None))


def test_an_entry_that_is_too_large_is_refused(path):
    assert opened(path).append(b"x" * (journals.MAX_ENTRY_BYTES + 1)) is None
    assert left(path) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_the_disk_refuses_is_not_kept_and_the_next_entry_is(path, monkeypatch, code):
    journal, write = opened(path), os.pwrite
    journal.append(b"before")

    def failing(descriptor: int, frame: bytes, at: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", failing)
    assert journal.append(b"refused") is None
    monkeypatch.setattr(os, "pwrite", lambda file, frame, at: write(file, frame[:5], at))
    assert journal.append(b"cut short") is None
    monkeypatch.undo()
    journal.append(b"after")
    assert left(path) == [b"before", b"after"]


@given(entries=st.lists(st.binary(max_size=50), max_size=5), cut=st.integers(0, 400))
def test_a_file_that_was_cut_off_anywhere_yields_its_whole_entries(tmp_path_factory, entries, cut):
    path = tmp_path_factory.mktemp("journal") / "answers"
    journal = opened(path)
    for entry in entries:
        journal.append(entry)
    file = path.with_name("answers-0")
    content = file.read_bytes()[:cut]
    file.write_bytes(content)
    ends = [
        sum(journals.HEAD.size + len(one) for one in entries[: n + 1]) for n in range(len(entries))
    ]
    assert left(path) == entries[: sum(end <= cut for end in ends)]


def test_garbage_ends_a_file(path):
    journal = opened(path)
    journal.append(b"whole")
    with path.with_name("answers-0").open("ab") as file:
        file.write(os.urandom(100))
    assert left(path) == [b"whole"]


def test_closing_leaves_only_what_is_awaited(path):
    journal = opened(path)
    journal.retire([journal.append(b"done")])
    journal.close()
    assert not list(path.parent.glob("answers*"))
    journal = opened(path)
    journal.append(b"awaited")
    journal.close()
    assert left(path) == [b"awaited"]
    assert journal.append(b"late") is None


def test_what_nobody_took_up_stays(path):
    opened(path).append(b"safe")
    journal = Journal(path)
    assert journal.append(b"too early") is None
    journal.close()
    assert left(path) == [b"safe"]


def test_what_is_retired_leaves_after_a_turn_although_newer_entries_are_awaited(path):
    journal = opened(path)
    old, awaited = journal.append(b"old"), journal.append(b"awaited")
    journal.retire([old])
    upto = journal.next_number
    assert b"old" in left(path)  # the file is emptied as a whole
    journal.turn()
    newer = journal.append(b"newer")
    assert journal.holds_before(upto)
    journal.retire([awaited])
    assert not journal.holds_before(upto)
    assert left(path) == [b"newer"]
    journal.turn()
    assert left(path) == [b"newer"]
    journal.retire([newer])
    assert sizes(path) == [0, 0]
