"""One erasure from the request to the proof: files, readers, crashes, turns."""

import asyncio
import sqlite3
import threading

from memory.erasure_scope import Scope
from tests.memory.erasing import PLANTED, Home
from tests.records import version


async def test_p53_no_byte_of_the_text_is_left_in_the_home_folder(home):
    """While a reader came and went, and with what the log quoted of it."""
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
    await home.record(1)
    assert "denizen.db-answers-0" in home.files_with(PLANTED)
    told = await home.erase(episode="ep_1")
    is_over.set()
    await answering
    assert told["files"].found == {}
    assert home.files_with(PLANTED) == []


async def test_an_erasure_that_was_cut_short_is_finished(home):
    """The process dies after the first of two writes; no one asks again."""
    for number in (1, 2):
        await home.record(number, session="s1")
    home.store.versions.add(version(1), ["ep_1"])
    home.store.versions.add(version(2, parent="denizen-000001"), ["ep_2"])
    erasure = home.eraser.erasure
    erased = await erasure.begin(Scope(session="s1"), actor="test")
    await erasure.mark(["ep_1", "ep_2"], erased)
    await erasure.erase(["ep_1"], erased)
    assert set(home.store.versions.taints()) == {"denizen-000001", "denizen-000002"}
    home.store.close()

    again = Home(home.path)
    await again.eraser.finish()
    assert again.count("episodes") == again.count("calls") == 0
    assert again.forgotten == {"ep_2"}
    [row] = again.eraser.erasure.all()
    assert row["ended_at"] is not None
    assert row["counts"]["episodes"] == 2
    assert row["tainted"] == ["denizen-000001", "denizen-000002"]
    assert again.store.versions.taints()["denizen-000002"]["num_episodes"] == 1
    assert again.files_with(PLANTED) == []
    await again.eraser.finish()
    assert again.count("erasures") == 1
    again.store.close()


async def test_an_erasure_that_was_cut_short_before_its_first_write_is_closed(home):
    await home.record(1)
    await home.eraser.erasure.begin(Scope(episode="ep_1"), actor="test")
    await home.eraser.finish()
    [row] = home.eraser.erasure.all()
    assert (row["ended_at"] is not None, row["counts"]) == (True, {})
    assert home.count("episodes") == 1


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

    async def noted_begin(scope, *, actor):
        steps.append("begin")
        return await begin(scope, actor=actor)

    async def noted_end(erased):
        tainted = await end(erased)
        steps.append("end")
        return tainted

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
