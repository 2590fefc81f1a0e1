from functools import partial
from pathlib import Path

import numpy as np
import pytest
import sqlite_utils

from memory.database import Transaction
from memory.errors import ConflictError, InvalidRequestError, NotFoundError
from memory.guidelines import Guidelines
from memory.schema import migrations
from memory.skill_writes import SYSTEM, merge, place, split_off
from memory.skills import SkillsConfig
from memory.store import Store
from memory.types import Skill, SkillEvent, SkillPolicy
from tests import records
from tests.memory import sorting
from tests.memory.sorting import Desk


@pytest.fixture
def desk(store: Store) -> Desk:
    """Three skills of five episodes each: sums, words, ships."""
    desk = Desk(store)
    desk.record(*(f"{kind} {n}" for n in range(5) for kind in ("sum", "word", "ship")))
    assert {*desk.skills().values()} == {1, 2, 3}
    return desk


def mix(desk: Desk, *skills: int) -> None:
    """Put all episodes of several skills under the first, as an early mistake would have."""
    first, *others = skills
    for other in others:
        desk.store.database.write(partial(_merge, part=other, whole=first))


def _merge(db: Transaction, part: int, whole: int) -> None:
    merge(db, part, whole, actor=SYSTEM)


def events(store: Store, skill: int) -> list[tuple[str, str, int | None]]:
    return [(one.actor, one.event.value, one.other_id) for one in store.skills.history(skill)]


def test_skill_of_two_kinds_is_split_with_a_history(desk: Desk) -> None:
    texts = [f"{kind} again {n}" for n in range(30) for kind in ("sum", "word")]
    desk.record(*texts)
    mix(desk, 1, 2)
    assert desk.regrouping.look()["split"] == 1
    groups = desk.skills().values()
    assert {*groups} == {1, 3, 4}
    assert ("system", "split_from", 1) in events(desk.store, 4)
    assert ("system", "split_off", 4) in events(desk.store, 1)
    titles = {skill.id: skill.title for skill in desk.store.skills.all()}
    assert sorted(titles[id].split()[0] for id in (1, 4)) in (["sum", "word"], ["again", "again"])


def test_looking_again_moves_nobody(desk: Desk) -> None:
    desk.regrouping.look()
    before, newest = desk.skills(), desk.store.skills.newest_change()
    assert desk.regrouping.look() == {}
    assert desk.skills() == before
    assert desk.store.skills.newest_change() == newest


def test_two_skills_of_one_kind_become_one_and_the_old_number_goes_on_meaning_it(
    desk: Desk,
) -> None:
    ids = [id for id, skill in desk.skills().items() if skill == 1][:2]
    part = desk.store.skills.split(1, ids, title=None)
    # As if the system had done it: nobody's word.
    desk.store.database.write(lambda db: db.execute("UPDATE skills SET is_kept = 0"))
    assert desk.regrouping.look()["merged"] == 1
    assert desk.store.skills.get(part.id).id == 1
    assert {*desk.skills().values()} == {1, 2, 3}
    assert ("system", "merged_into", 1) in events(desk.store, part.id)
    assert ("system", "absorbed", part.id) in events(desk.store, 1)


def test_what_a_person_split_is_not_merged_again(desk: Desk) -> None:
    ids = [id for id, skill in desk.skills().items() if skill == 1][:2]
    part = desk.store.skills.split(1, ids, title="my sums")
    desk.regrouping.look()
    assert {id for id, skill in desk.skills().items() if skill == part.id} >= {*ids}
    assert desk.store.skills.get(part.id).title == "my sums"


@pytest.mark.parametrize("word", ["rename", "lock"])
def test_a_person_s_word_stays(desk: Desk, word: str) -> None:
    texts = [f"{kind} again {n}" for n in range(30) for kind in ("sum", "word")]
    desk.record(*texts)
    mix(desk, 1, 2)
    if word == "rename":
        desk.store.skills.update(1, title="mine", policy=None)
    else:
        desk.store.skills.update(1, title=None, policy=SkillPolicy.LOCKED)
    title = desk.store.skills.get(1).title
    desk.regrouping.look()
    assert {*desk.skills().values()} == {1, 3}
    assert desk.store.skills.get(1).title == title


def two_of_a_kind(desk: Desk) -> int:
    """Split sums in two, as an unlucky order leaves them behind; return the part."""
    ids = [id for id, skill in desk.skills().items() if skill == 1][:3]
    return desk.store.database.write(lambda db: split_off(db, 1, ids, title="part", actor=SYSTEM))


def test_paused_skill_stays_apart_and_keeps_its_texts_and_its_title(desk: Desk) -> None:
    part = two_of_a_kind(desk)
    desk.store.skills.update(part, title=None, policy=SkillPolicy.PAUSED)
    before = desk.skills()
    assert desk.regrouping.look() == {}
    assert desk.skills() == before
    kept = desk.store.skills.get(part)
    assert (kept.title, kept.policy) == ("part", SkillPolicy.PAUSED)


def test_skill_with_a_guideline_is_the_one_that_others_become_part_of(desk: Desk) -> None:
    part = two_of_a_kind(desk)
    guidelines = Guidelines(desk.store.database)
    guidelines.set(part, "Count twice.")
    desk.record("sum 7", "sum 8")
    desk.regrouping.look()
    assert desk.store.skills.get(1).id == part
    assert guidelines.get(part) == "Count twice."
    assert desk.store.skills.get(part).title == "part"


@pytest.mark.parametrize(("own", "left"), [(None, "Count twice."), ("Mine.", "Mine.")])
def test_guideline_of_a_skill_that_a_person_merges_moves_where_there_is_none(
    desk: Desk, own: str | None, left: str
) -> None:
    guidelines = Guidelines(desk.store.database)
    guidelines.set(2, "Count twice.")
    if own is not None:
        guidelines.set(1, own)
    desk.store.skills.merge(2, into=1)
    assert guidelines.get(1) == left
    with pytest.raises(ConflictError, match="has become part of skill 1"):
        guidelines.set(2, "Too late.")


def test_pause_of_a_skill_that_is_merged_meanwhile_is_a_conflict_and_not_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = desk.store.skills.get

    def meanwhile(skill_id: int) -> Skill:
        known = get(skill_id)
        monkeypatch.undo()
        desk.store.database.write(partial(_merge, part=2, whole=1))
        return known

    monkeypatch.setattr(desk.store.skills, "get", meanwhile)
    with pytest.raises(ConflictError, match="skill 2 has become part of skill 1"):
        desk.store.skills.update(2, title=None, policy=SkillPolicy.PAUSED)
    assert get(1).policy is SkillPolicy.LEARN


def test_what_found_a_skill_during_a_look_founds_no_second_one_and_tasks_stay_with_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "CONFIG", SkillsConfig(min_founders=3, threshold=0.99999))
    ids = Desk(store).record("sum 0", "sum 1", "sum 2", "sum 3")
    store.tasks.add([records.task(n, origin=f"episode:{id}") for n, id in enumerate(ids)])
    monkeypatch.undo()
    desk = Desk(store)
    texts = desk.regrouping._texts

    def meanwhile(view: object) -> object:
        desk.record("sum 9")  # founds a skill with two of those that wait
        return texts(view)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.regrouping, "_texts", meanwhile)
    assert desk.regrouping.look() == {}
    episodes = desk.skills()
    assert sorted(map(str, episodes.values())) == ["1", "1", "1", "None", "None"]
    for row in store.database.read("SELECT origin, skill_id FROM tasks"):
        assert row["skill_id"] == episodes[row["origin"].removeprefix("episode:")]
    monkeypatch.undo()
    desk.regrouping.look()
    assert {*desk.skills().values()} == {1}


def test_what_a_person_does_meanwhile_wins(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.record(*(f"{kind} again {n}" for n in range(30) for kind in ("sum", "word")))
    mix(desk, 1, 2)
    texts = desk.regrouping._texts

    def meanwhile(view: object) -> object:
        desk.store.skills.update(1, title="mine", policy=None)
        return texts(view)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.regrouping, "_texts", meanwhile)
    assert desk.regrouping.look() == {}
    assert {*desk.skills().values()} == {1, 3}


def test_tenants_are_looked_at_apart(store: Store) -> None:
    desk = Desk(store)
    ours = desk.record("sum 1", "sum 2", tenant="ours")
    theirs = desk.record("sum 3", "sum 4", tenant="theirs")
    desk.regrouping.look()
    assert {*desk.skills().values()} == {None}
    ours += desk.record("sum 5", tenant="ours")
    theirs += desk.record("sum 6", tenant="theirs")
    desk.regrouping.look()
    groups = desk.skills()
    assert {groups[id] for id in ours} == {1}
    assert {groups[id] for id in theirs} == {2}
    with pytest.raises(InvalidRequestError, match="two tenants"):
        store.skills.merge(1, into=2)


def test_key_terms_and_titles_come_from_the_texts(desk: Desk) -> None:
    desk.regrouping.look()
    terms = {skill.title: skill.key_terms for skill in desk.store.skills.all()}
    assert terms == {"sum": ("sum",), "word": ("word",), "ship": ("ship",)}


def test_text_that_is_like_no_other_of_its_skill_waits_again_and_may_found_one_later(
    desk: Desk,
) -> None:
    [stray] = desk.record("lonely 1")
    desk.store.database.write(lambda db: place(db, [stray], 2))
    assert desk.regrouping.look() == {"left": 1}
    assert desk.skills()[stray] is None
    assert events(desk.store, 2)[-1] == ("system", "left", None)
    assert desk.regrouping.look() == {}
    desk.record("lonely 2", "lonely 3")
    assert desk.skills()[stray] == 4


def test_tasks_and_what_tasks_were_made_of_stay_where_they_are_like_no_other(desk: Desk) -> None:
    [stray] = desk.record("lonely 1")
    desk.store.database.write(lambda db: place(db, [stray], 2))
    derived = records.task(1, origin=f"episode:{stray}", skill_id=2)
    desk.store.tasks.add([derived])
    assert desk.regrouping.look() == {}
    assert (desk.skills()[stray], desk.store.tasks.get(derived.id).skill_id) == (2, 2)


def test_a_person_s_skill_keeps_what_is_like_no_other(desk: Desk) -> None:
    [stray] = desk.record("lonely 1")
    desk.store.database.write(lambda db: place(db, [stray], 2))
    desk.store.skills.update(2, title="Words", policy=None)
    assert desk.regrouping.look() == {}
    assert desk.skills()[stray] == 2


def test_tasks_and_running_work_move_with_their_skill(desk: Desk) -> None:
    task = records.task(1, skill_id=2)
    desk.store.tasks.add([task])
    merged = desk.store.skills.merge(2, into=1)
    assert desk.store.tasks.get(task.id).skill_id == merged.id == 1
    assert [one.id for one in desk.store.tasks.of_skills([2], task.split)] == [task.id]
    late = desk.record("sum 9")[0]
    desk.store.database.write(
        lambda db: db.execute("UPDATE episodes SET skill_id = 2 WHERE id = ?", (late,))
    )
    desk.regrouping.look()
    assert desk.skills()[late] == 1


def test_a_chain_of_merges_ends_at_the_last(desk: Desk) -> None:
    desk.store.skills.merge(1, into=2)
    desk.store.skills.merge(2, into=3)
    assert [desk.store.skills.get(id).id for id in (1, 2, 3)] == [3, 3, 3]
    assert {*desk.skills().values()} == {3}
    assert [skill.id for skill in desk.store.skills.all()] == [3]
    with pytest.raises(InvalidRequestError, match="already"):
        desk.store.skills.merge(1, into=3)


def test_bad_splits_and_merges_change_nothing(desk: Desk) -> None:
    before = desk.skills()
    of_first = [id for id, skill in before.items() if skill == 1]
    with pytest.raises(NotFoundError):
        desk.store.skills.merge(1, into=99)
    with pytest.raises(NotFoundError):
        desk.store.skills.split(1, [of_first[0], "ep_none"], title=None)
    with pytest.raises(InvalidRequestError, match="is not of skill 2"):
        desk.store.skills.split(2, of_first, title=None)
    with pytest.raises(InvalidRequestError, match="no other episodes"):
        desk.store.skills.split(1, of_first, title=None)
    assert desk.skills() == before


def test_history_says_who_and_what(desk: Desk) -> None:
    desk.store.skills.update(1, title="mine", policy=SkillPolicy.PAUSED)
    *_, renamed, policy = desk.store.skills.history(1)
    assert (renamed.actor, renamed.event, renamed.detail) == (
        "person",
        SkillEvent.RENAMED,
        "sum -> mine",
    )
    assert (policy.event, policy.detail) == (SkillEvent.POLICY, "learn -> paused")
    assert events(desk.store, 1)[0] == ("system", "founded", None)


def test_skills_of_an_earlier_schema_keep_their_numbers_and_their_place(tmp_path: Path) -> None:
    path = tmp_path / "early.db"
    early = sqlite_utils.Database(path)
    migrations.apply(early, stop_before="m007_skills_over_time")
    centroid = np.ones(16, dtype="<f4").tobytes()
    early.execute(
        """INSERT INTO skills (id, title, created_at, policy, task_key, centroid, centroid_count)
            VALUES (4, 'sums', '2026-01-01T00:00:00+00:00', 'paused', 'billing', ?, 3)""",
        (centroid,),
    )
    early.execute(
        """INSERT INTO episodes (id, created_at, source, task_text, skill_id, learn, revision,
            digested_revision) VALUES ('ep_1', '2026-01-01', 'chat', 'sum 1', 4, 1, 1, 1)"""
    )
    early.execute("INSERT INTO vectors VALUES ('ep_1', 'words', ?, NULL)", (centroid,))
    early.conn.commit()
    early.close()
    store = Store(path)
    [skill] = store.skills.all()
    assert (skill.id, skill.title, skill.policy, skill.task_key) == (4, "sums", "paused", "billing")
    [row] = store.skills.centroids("words")
    assert (row["centroid"], row["centroid_count"], row["tenant"]) == (centroid, 3, None)
    assert store.skills.centroids("other")[0]["centroid"] is None
    assert store.database.read("PRAGMA foreign_key_check") == []
    assert Desk(store).record("x", task_key="billing")
    assert Desk(store).skills() == {"ep_0001": 4, "ep_1": 4}
    store.close()


def test_two_tenants_may_give_their_tasks_the_same_name(store: Store) -> None:
    desk = Desk(store)
    desk.record("sum 1", tenant="ours", task_key="billing")
    desk.record("sum 1", tenant="theirs", task_key="billing")
    assert {*desk.skills().values()} == {1, 2}
    assert [skill.tenant for skill in store.skills.all()] == ["ours", "theirs"]


def test_older_texts_of_a_skill_that_is_split_are_sorted_too(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memory.regrouping.SAMPLE", 60)
    desk.record(*(f"{kind} again {n}" for n in range(60) for kind in ("sum", "word")))
    mix(desk, 1, 2)
    assert desk.regrouping.look()["split"] == 1
    for _ in range(30):  # old texts come into view by turns
        desk.regrouping.look()
    groups = desk.skills()
    texts = {
        row["id"]: row["task_text"]
        for row in desk.store.database.read("SELECT id, task_text FROM episodes")
    }
    kinds = {(texts[id].split()[0], skill) for id, skill in groups.items()}
    assert len(kinds) == 3


def test_no_look_takes_more_than_one_episode_in_twenty_from_its_skill_and_all_get_home(
    desk: Desk,
) -> None:
    desk.record(*(f"{kind} again {n}" for n in range(60) for kind in ("sum", "word", "ship")))
    mix(desk, 1, 2)
    looks = 0
    while True:
        before = desk.skills()
        if not desk.regrouping.look():
            break
        looks += 1
        after = desk.skills()
        moved = [id for id, skill in before.items() if after[id] != skill]
        assert len(moved) <= 0.05 * len(before)
    assert looks > 5  # half of a skill of 130 is more than a look may move
    texts = {
        row["id"]: row["task_text"]
        for row in desk.store.database.read("SELECT id, task_text FROM episodes")
    }
    kinds = {(texts[id].split()[0], skill) for id, skill in desk.skills().items()}
    assert len(kinds) == 3


def test_merge_that_is_too_large_for_a_look_goes_on_at_the_next(desk: Desk) -> None:
    desk.record(*(f"{kind} again {n}" for n in range(30) for kind in ("sum", "word", "ship")))
    ids = [id for id, skill in desk.skills().items() if skill == 1][:15]
    part = desk.store.database.write(lambda db: split_off(db, 1, ids, title="part", actor=SYSTEM))
    happened = [desk.regrouping.look() for _ in range(4)]
    assert [one["merged"] for one in happened] == [0, 0, 1, 0]
    assert happened[-1] == {}
    assert desk.store.skills.get(part).id == 1
    assert {*desk.skills().values()} == {1, 2, 3}
