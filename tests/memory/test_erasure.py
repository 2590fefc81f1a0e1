"""Erasing from a real database: what goes, what stays, and which versions had learned from it."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memory import rows
from memory.database import Transaction
from memory.episode_store import CallKeys, set_grades
from memory.eraser import Eraser
from memory.erasure_scope import Scope
from memory.errors import ConflictError, InvalidRequestError, NotFoundError
from memory.needles import needles_of
from memory.skill_writes import note
from memory.store import Store
from memory.task_store import add_task
from memory.titles import title_of
from memory.types import (
    EpisodeSource,
    Feedback,
    Grade,
    GradeKind,
    Outcome,
    SkillEvent,
    VersionStatus,
)
from tests.records import NOON, call, episode, later, task, version

PLANTED = "zq7PlantedSecretText5f1c9a"


class Home:
    """A store in a home folder, and what erases from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store(path / "denizen.db")
        self.forgotten: set[str] = set()
        self.running: set[str] = set()
        self.eraser = Eraser(
            self.store, path, running=lambda scope: self.running, forget=[self.forgotten.update]
        )

    async def record(self, number: int, text: str = PLANTED, **fields: Any) -> str:
        """Record an episode of two calls with all that can hang on it; return its id."""
        id = f"ep_{number}"
        its = episode(id=id, task_text=f"about {text}", created_at=later(number), **fields)
        request = {"messages": [{"role": "user", "content": f"about {text} " * 40}]}
        answer = {"role": "assistant", "content": f"answer {text} " * 30}
        first = call(id=f"c{number}", episode_id=id, request=request, message=answer)
        longer = [*request["messages"], answer, {"role": "user", "content": f"more {text}"}]
        second = call(
            id=f"c{number}b", episode_id=id, request={"messages": longer}, parent_id=first.id
        )
        keys = CallKeys(quotes=[("user", "about", 2, text)])
        await self.store.episodes.record(its, [first], [keys])
        await self.store.episodes.record(its, [second], [keys])
        said = Feedback(
            id=f"fb{number}",
            episode_id=id,
            created_at=NOON,
            value=1,
            comment=f"comment {text}",
            correction=f"correction {text}",
        )
        await self.store.episodes.add_feedback(said)
        grade = Grade(
            kind=GradeKind.PERSON, grader="user", version="1", value=1, explanation=f"why {text}"
        )

        def hang(db: Transaction) -> None:
            set_grades(db, its, [grade], Outcome(value=1.0, provenance=None, num_grades=1))
            vector = np.ones(4, dtype="<f4").tobytes()
            db.execute(
                "INSERT INTO vectors (episode_id, embedder, vector) VALUES (?, 'e', ?)",
                (id, vector),
            )
            derived = task(
                number,
                messages=({"role": "user", "content": text},),
                origin=f"episode:{id}",
                tenant=its.tenant,
            )
            add_task(db, derived)

        await self.store.database.write_async(hang)
        return id

    async def practise(self, number: int, of: int) -> str:
        """Record practice on the task that was made of an episode."""
        id = f"ep_practice_{number}"
        its = episode(
            id=id,
            source=EpisodeSource.PRACTICE,
            task_id=f"task_{of:04d}",
            task_text=PLANTED,
            digested_revision=1,
        )
        grade = Grade(kind=GradeKind.CHECK, grader="g", version="1", value=1)
        outcome = Outcome(value=1.0, provenance=None, num_grades=1)
        tried = (its, call(id=f"p{number}", episode_id=id), grade, outcome)
        await self.store.episodes.record_practice([tried])
        return id

    async def erase(self, **scope: Any) -> dict[str, Any]:
        return await self.eraser.erase(Scope(**scope), actor="test")

    def files_with(self, text: str) -> list[str]:
        return [
            path.name
            for path in self.path.rglob("*")
            if path.is_file() and text.encode() in path.read_bytes()
        ]

    def count(self, table: str) -> int:
        return int(self.store.database.read(f"SELECT COUNT(*) AS n FROM {table}")[0]["n"])


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    home.store.close()


async def test_an_episode_goes_with_all_that_hangs_on_it(home):
    await home.record(1)
    await home.record(2, "another text")
    told = await home.erase(episode="ep_1")
    assert told["counts"] == {
        "episodes": 1,
        "calls": 2,
        "feedback": 1,
        "grades": 1,
        "vectors": 1,
        "tasks": 1,
    }
    for table in ("episodes", "feedback", "grades", "vectors", "tasks"):
        assert home.count(table) == 1, table
    assert home.forgotten == {"ep_1"}
    assert [one.id for one in home.store.episodes.calls("ep_2")] == ["c2", "c2b"]


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


async def test_an_answer_that_ends_after_the_erasure_is_not_recorded(home):
    its = await home.record(1)
    await home.erase(episode=its)
    late = call(id="c_late", episode_id=its)
    await home.store.episodes.record(episode(id=its), [late], [None])
    assert home.count("episodes") == home.count("calls") == 0
    with pytest.raises(NotFoundError):
        home.store.episodes.get(its)


async def test_practice_on_an_erased_task_goes_and_does_not_come_back(home):
    await home.record(1)
    await home.practise(1, of=1)
    told = await home.erase(episode="ep_1")
    assert told["counts"]["episodes"] == 2
    await home.practise(2, of=1)  # a cycle that runs still holds the task
    assert home.count("episodes") == home.count("calls") == home.count("grades") == 0


async def test_grades_worked_out_meanwhile_are_not_kept(home):
    await home.record(1)
    its = home.store.episodes.get("ep_1")
    await home.erase(episode="ep_1")
    grade = Grade(kind=GradeKind.PERSON, grader="user", version="1", value=1)
    outcome = Outcome(value=1.0, provenance=None, num_grades=1)
    await home.store.database.write_async(lambda db: set_grades(db, its, [grade], outcome))
    assert home.count("grades") == 0


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        ({"session": "s1"}, {"ep_3", "ep_4"}),
        ({"session": "s1", "tenant": "acme"}, {"ep_1", "ep_3", "ep_4"}),
        ({"user": "ann"}, {"ep_2", "ep_4"}),
        ({"tenant": "acme"}, {"ep_1", "ep_3"}),
    ],
)
async def test_a_scope_takes_its_own_episodes_and_no_others(home, scope, left):
    await home.record(1, "a", session="s1", user="ann")
    await home.record(2, "b", session="s1", tenant="acme")
    await home.record(3, "c", session="s2", user="ann")
    await home.record(4, "d", session="s2", tenant="acme")
    told = await home.erase(**scope)
    rows = home.store.database.read("SELECT id FROM episodes")
    assert {row["id"] for row in rows} == left
    assert told["counts"]["episodes"] == 4 - len(left)


async def test_what_is_not_there_is_said(home):
    with pytest.raises(NotFoundError):
        await home.erase(episode="ep_none")
    assert (await home.erase(session="none"))["counts"] == {}


@pytest.mark.parametrize(
    "scope", [{}, {"episode": "e", "session": "s"}, {"episode": "e", "tenant": "t"}]
)
def test_a_scope_names_one_thing(scope):
    with pytest.raises(InvalidRequestError):
        Scope(**scope)


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


async def test_an_audit_row_without_content_stays(home):
    await home.record(1, session="secret-session")
    await home.erase(session="secret-session")
    [row] = home.eraser.erasure.all()
    assert (row["actor"], row["scope"], row["counts"]["calls"]) == ("test", "session", 2)
    assert row["ended_at"] >= row["created_at"]
    assert "secret-session" not in str(row)
    assert row["scope_sha256"] == Scope(session="secret-session").sha256


async def test_a_plan_counts_and_changes_nothing(home):
    await home.record(1)
    plan = home.eraser.erasure.plan(Scope(episode="ep_1"))
    assert plan["counts"]["calls"] == 2
    assert home.count("erasures") == 0
    assert (await home.erase(episode="ep_1"))["counts"] == plan["counts"]


async def test_what_was_recalled_elsewhere_goes_with_its_tokens(home):
    await home.record(1)
    told = {"block": PLANTED, "episodes": [{"id": "ep_1"}], "skill": 1, "message": 0, "digest": ""}
    other = call(id="c9", episode_id="ep_9", recalled=told)
    await home.store.episodes.record(episode(id="ep_9"), [other], [None])
    follow = call(id="c9b", episode_id="ep_9", parent_id="c9", prompt_token_ids=(1, 9, 8, 33, 2, 5))
    await home.store.episodes.record(episode(id="ep_9"), [follow], [None])
    home.store.versions.add(version(1), ["ep_9"])
    report = await home.erase(episode="ep_1")
    assert home.files_with(PLANTED) == []
    for kept in home.store.episodes.calls("ep_9"):
        assert kept.prompt_token_ids is None
        assert kept.not_learnable_reason == "erased"
    assert [one.version for one in report["tainted"]] == ["denizen-000001"]
    again = call(id="c9c", episode_id="ep_9", parent_id="c9b")
    await home.store.episodes.record(episode(id="ep_9"), [again], [None])
    assert home.store.episodes.call("c9c").prompt_token_ids == (1, 9, 8)


async def test_what_is_recalled_of_erased_episodes_by_a_running_answer_is_not_stored(home):
    await home.record(1)
    await home.erase(episode="ep_1")
    told = {
        "block": f"quoted {PLANTED}",
        "episodes": [{"id": "ep_1"}, {"id": "ep_2"}],
        "skill": 1,
        "message": 0,
        "digest": "",
    }
    await home.store.episodes.record(
        episode(id="ep_9"), [call(id="c9", episode_id="ep_9", recalled=told)], [None]
    )
    kept = home.store.episodes.call("c9")
    assert (kept.recalled["block"], kept.recalled["episodes"]) == (None, [{"id": "ep_2"}])
    assert kept.prompt_token_ids is kept.completion_token_ids is kept.sampler_logprobs is None
    assert kept.not_learnable_reason == "erased"
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


async def test_an_episode_that_is_not_recorded_yet_never_will_be(home):
    home.running = {"ep_1"}
    told = await home.erase(session="s1")
    assert told["counts"].get("episodes", 0) == 0
    await home.store.episodes.record(episode(session="s1"), [call()], [None])
    assert home.count("episodes") == home.count("calls") == 0
    with pytest.raises(NotFoundError):
        home.running = set()
        await home.erase(episode="ep_1")


def make_skill(number: int, title: str, **fields: Any):
    def write(db: Transaction) -> None:
        row = {
            "id": number,
            "title": title,
            "created_at": "2026-01-01T12:00:00+00:00",
            "policy": "learn",
            "embedder": "e",
            "centroid": np.ones(4, dtype="<f4").tobytes(),
            "centroid_count": 1,
        }
        rows.insert(db, "skills", row | fields)

    return write


async def test_words_of_the_erased_go_from_every_skill_of_the_tenant(home):
    """Whoever named it: a person who split a skill kept the old title for the rest."""
    await home.record(1, "divorce of quentinsmith, hearing")
    await home.record(2, "sums of numbers")
    await home.record(3, "divorce of quentinsmith", tenant="acme")
    for number, fields in {
        1: {"title": "court things"},
        2: {"title": "divorce quentinsmith hearing", "is_kept": 1},
        3: {"title": "divorce", "key_terms": '["quentinsmith", "numbers"]', "is_kept": 1},
        4: {"title": "divorce quentinsmith", "tenant": "acme"},
    }.items():
        await home.store.database.write_async(make_skill(number, **fields))

    def rename(db: Transaction) -> None:
        db.execute("UPDATE episodes SET skill_id = 1 WHERE id = 'ep_1'")
        db.execute("UPDATE episodes SET skill_id = 2 WHERE id = 'ep_2'")
        for skill_id, detail in ((3, "divorce quentinsmith -> divorce"), (2, "numbers -> sums")):
            note(db, skill_id, "person", SkillEvent.RENAMED, detail=detail)

    await home.store.database.write_async(rename)
    await home.erase(episode="ep_1")
    skills = {one.id: one for one in home.store.skills.all()}
    assert skills[1].title == "court things"
    assert skills[2].title == title_of(["about sums of numbers"])
    assert (skills[3].title, *skills[3].key_terms) == ("skill 3", "numbers")
    assert skills[4].title == "divorce quentinsmith"  # another tenant's own word
    details = {
        number: [one.detail for one in home.store.skills.history(number) if one.detail]
        for number in (2, 3)
    }
    assert details == {2: ["numbers -> sums"], 3: []}


async def test_a_skill_lies_nowhere_when_what_it_was_measured_on_is_gone(home):
    await home.record(1)
    await home.store.database.write_async(make_skill(1, "a"))
    await home.store.episodes.record(episode(id="ep_2"), [call(id="x", episode_id="ep_2")], [None])
    await home.store.database.write_async(lambda db: db.execute("UPDATE episodes SET skill_id = 1"))
    await home.erase(episode="ep_1")  # the other has no vector
    [row] = home.store.database.read("SELECT centroid, centroid_count FROM skills")
    assert row == {"centroid": None, "centroid_count": 0}


async def test_a_skill_is_not_named_after_what_was_erased(home):
    def found_skill(db: Transaction) -> None:
        sql = """INSERT INTO skills (id, title, created_at, policy, key_terms, embedder,
            centroid_count) VALUES (?, ?, '2026-01-01T12:00:00+00:00', 'learn', ?, 'e', 1)"""
        db.execute(sql, (1, "zebras", '["zebras"]'))
        db.execute(sql, (2, "turtles", '["turtles"]'))
        db.execute("UPDATE episodes SET skill_id = 1 WHERE id = 'ep_1'")
        db.execute("UPDATE episodes SET skill_id = 2 WHERE id != 'ep_1'")

    await home.record(1, "zebras in stripes")
    await home.record(2, "turtles")
    await home.record(3, "turtles")
    await home.store.database.write_async(found_skill)
    before = home.store.skills.newest_change()
    await home.erase(episode="ep_1")
    await home.erase(episode="ep_2")
    titles = {skill.id: skill.title for skill in home.store.skills.all()}
    assert titles == {1: "skill 1", 2: "turtles"}
    assert home.store.skills.newest_change() > before  # whoever keeps skills reads them again
    assert home.files_with("zebras") == []


def test_needles_hold_nothing_that_json_escapes():
    needles = needles_of('a "quoted part of it" and\nanother line of text\\end')
    assert needles == {"quoted part of it", "another line of text"}


async def test_a_file_of_the_operators_own_is_reported_and_left_alone(home):
    await home.record(1)
    export = home.path / "export.jsonl"
    export.write_text(PLANTED, "utf-8")
    told = await home.erase(episode="ep_1")
    assert told["files"].found == {"export.jsonl": 1}
    assert export.read_text("utf-8") == PLANTED


async def test_erasures_take_turns(home):
    for number in range(6):
        await home.record(number)
    threads = threading.active_count()
    await asyncio.gather(*(home.erase(episode=f"ep_{number}") for number in range(6)))
    assert home.count("erasures") == 6
    assert home.files_with(PLANTED) == []
    assert threading.active_count() < threads + 20
