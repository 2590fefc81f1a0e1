"""One erasure from the request to the proof: files, readers, crashes, turns."""

import asyncio
import sqlite3
import threading

import pytest

from memory import scrubbing
from memory.needle_file import NeedleFile
from tests.memory.erasing import PLANTED, Home, files_with
from tests.records import version


@pytest.mark.parametrize("max_vacuum_bytes", [scrubbing.MAX_VACUUM_BYTES, 0])
async def test_p53_no_byte_of_the_text_is_left_in_the_home_folder(
    home, monkeypatch, max_vacuum_bytes
):
    """With what the log quoted of it, also where the database is too large to be written anew."""
    monkeypatch.setattr(scrubbing, "MAX_VACUUM_BYTES", max_vacuum_bytes)
    logs = home.path / "logs"
    logs.mkdir()
    (logs / "service.log").write_text(f"before\ncannot read {PLANTED}!\nafter\n", "utf-8")
    for number in range(8):
        await home.record(number, PLANTED if number % 2 else "something else")
    assert set(home.files_with(PLANTED)) >= {"service.log"}
    for number in range(1, 8, 2):
        told = await home.erase(episode=f"ep_{number}")
    assert told["files"].is_wal_cut
    assert told["files"].found == {}
    assert home.files_with(PLANTED) == []
    lines = (logs / "service.log").read_text("utf-8").splitlines()
    assert (lines[0], lines[2]) == ("before", "after")
    assert home.store.database.read("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


async def test_a_reader_that_stays_is_reported_and_does_not_block_for_ever(home, monkeypatch):
    monkeypatch.setattr("memory.scrubbing.CHECKPOINT_TRIES", 3)
    await home.record(1)
    reader = sqlite3.connect(home.path / "denizen.db")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM episodes").fetchall()
    told = await home.erase(episode="ep_1")
    assert not told["files"].is_wal_cut
    assert "denizen.db-wal" in told["files"].found
    reader.close()
    await home.record(2, "something else")
    told = await home.erase(episode="ep_2")
    assert told["files"].is_wal_cut
    assert [row["ended_at"] is None for row in home.eraser.erasure.all()] == [False, True]
    home.log(f"the reader said {PLANTED}")
    await home.eraser.finish()  # which the service does now and then
    assert all(row["ended_at"] for row in home.eraser.erasure.all())
    assert home.files_with(PLANTED) == []


async def test_records_are_written_while_the_log_is_cut(home):
    await home.record(1)
    erasing = asyncio.create_task(home.erase(episode="ep_1"))
    for number in range(10, 40):
        await home.record(number, f"other {number}")
    assert (await erasing)["files"].found == {}
    assert home.count("episodes") == 30


async def test_what_is_erased_leaves_the_journal_though_something_in_it_is_always_awaited(home):
    journal, is_over = home.store._journal, threading.Event()

    def go_on() -> None:
        awaited = journal.append(b"an answer")
        while not is_over.wait(0.002):
            newer = journal.append(b"another answer")
            home.store.database.alone(lambda _, done=awaited: journal.retire([done]))
            awaited = newer

    answering = asyncio.create_task(asyncio.to_thread(go_on))
    try:
        await home.record(1)
        assert any("-answers-" in name for name in home.files_with(PLANTED))
        told = await home.erase(episode="ep_1")
    finally:
        is_over.set()
        await answering
    assert told["files"].found == {}
    assert home.files_with(PLANTED) == []


async def test_an_erasure_that_was_cut_short_is_finished(home, tmp_path_factory):
    """The process is killed after the first of two writes, its log and WAL stay; no one asks."""
    gone = "xk3TextOfWhatWentFirst77ab"  # nothing else in the record tells it any more
    for number, text in ((1, gone), (2, PLANTED)):
        await home.record(number, text, session="s1")
    home.store.versions.add(version(1), ["ep_1"])
    home.store.versions.add(version(2, parent="denizen-000001"), ["ep_2"])
    home.log(f"cannot read {gone}")
    erase = home.eraser.erasure.erase

    async def erase_the_first(ids, erased):
        await erase(ids[:1], erased)
        raise asyncio.CancelledError

    home.eraser.erasure.erase = erase_the_first
    with pytest.raises(asyncio.CancelledError):
        await home.erase(session="s1")
    assert set(home.store.versions.taints()) == {"denizen-000001", "denizen-000002"}
    left = home.killed(tmp_path_factory.mktemp("left"))
    assert {"service.log", "denizen.db-wal"} <= set(files_with(left, gone))

    again = Home(left)
    await again.eraser.finish()
    assert again.count("episodes") == again.count("calls") == 0
    assert again.forgotten == {"ep_2", "task_0002"}
    [row] = again.eraser.erasure.all()
    assert row["ended_at"] is not None
    assert row["counts"]["episodes"] == 2
    assert row["tainted"] == ["denizen-000001", "denizen-000002"]
    assert again.store.versions.taints()["denizen-000002"]["num_episodes"] == 1
    assert again.files_with(PLANTED) == again.files_with(gone) == []
    await again.eraser.finish()
    assert again.count("erasures") == 1
    again.store.close()


async def test_a_kill_at_any_step_of_an_erasure_leaves_no_byte_after_the_next_start(
    home, tmp_path_factory, monkeypatch
):
    """Case P-53. What the home holds at a step is copied: a SIGKILL there leaves just that."""
    steps, folder = [], tmp_path_factory.mktemp("killed")

    def before(owner, name):
        done = getattr(owner, name)

        def noted(*args, **kwargs):
            steps.append(home.killed(folder / str(len(steps))))
            return done(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    for number in (1, 2, 3):
        await home.record(number, PLANTED if number < 3 else "something else", session="s1")
    await home.record(4, "what another session said", session="s2")
    await home.practise(1, of=1)
    home.store.versions.add(version(1), ["ep_1"])
    home.log(f"cannot read {PLANTED}")
    home.index()
    gone = home.vector_ids(but="ep_4")
    assert gone < home.indexed_ids()
    monkeypatch.setattr("memory.erasure.BATCH", 2)
    for owner, name in (
        (home.store.database, "_commit"),
        (home.store.database, "_do_alone"),
        (home.vectors, "save"),
        (scrubbing, "_mask"),
        (scrubbing, "_found"),
        (NeedleFile, "add"),
        (NeedleFile, "destroy"),
    ):
        before(owner, name)
    told = await home.erase(session="s1")
    assert told["files"].found == {} and home.files_with(PLANTED) == []
    monkeypatch.undo()
    assert len(steps) > 15
    num_cut_short = 0
    for left in steps:
        dirty = bool(files_with(left, PLANTED))
        again = Home(left)
        await again.eraser.finish()
        audit = again.eraser.erasure.all()
        if audit:  # it had begun
            num_cut_short += dirty
            assert again.files_with(PLANTED) == [], left.name
            assert [row["id"] for row in again.store.database.read("SELECT id FROM episodes")] == [
                "ep_4"
            ]
            assert audit[0]["ended_at"] is not None
            assert audit[0]["tainted"] == ["denizen-000001"]
            assert audit[0]["counts"]["episodes"] == 4
            assert not gone & again.indexed_ids(), left.name
            assert not (left / "erasing").exists()
        else:  # nobody was told of one
            assert again.count("episodes") == 5
        again.store.close()
    assert num_cut_short > 8


def test_kept_needles_survive_a_write_that_was_cut_off_and_are_overwritten(tmp_path):
    kept = NeedleFile(tmp_path, "erasure_1")
    assert kept.read() == set()
    kept.add({"a secret\nof two lines", "another"})
    file = tmp_path / "erasing" / "erasure_1"
    file.write_bytes(file.read_bytes()[:-4])
    assert kept.read() == {"a secret\nof two lines"}
    kept.add({"a third"})
    assert kept.read() == {"a secret\nof two lines", "a third"}
    with file.open("rb") as held:  # what is on disk under the name that is gone
        kept.destroy()
        assert set(held.read()) == {0}
    assert kept.read() == set()
    assert not file.parent.exists()
    kept.destroy()


async def test_a_file_of_the_operators_own_is_reported_and_left_alone(home):
    await home.record(1)
    export = home.path / "export.jsonl"
    export.write_text(PLANTED, "utf-8")
    told = await home.erase(episode="ep_1")
    assert told["files"].found == {"export.jsonl": 1}
    assert export.read_text("utf-8") == PLANTED


async def test_erasures_take_turns(home, monkeypatch):
    erasure, steps = home.eraser.erasure, []
    begin, end = erasure.begin, erasure.end

    async def noted_begin(scope, ids, *, actor):
        steps.append("begin")
        return await begin(scope, ids, actor=actor)

    async def noted_end(erased):
        await end(erased)
        steps.append("end")

    monkeypatch.setattr(erasure, "begin", noted_begin)
    monkeypatch.setattr(erasure, "end", noted_end)
    for number in range(6):
        await home.record(number)
    threads = threading.active_count()
    await asyncio.gather(*(home.erase(episode=f"ep_{number}") for number in range(6)))
    assert steps == ["begin", "end"] * 6
    assert home.count("erasures") == 6
    assert home.files_with(PLANTED) == []
    assert threading.active_count() < threads + 20
