"""What skills keep of erased episodes: no word, and no place."""

from typing import Any

import numpy as np

from memory import rows
from memory.database import Transaction
from memory.skill_writes import note
from memory.titles import title_of
from memory.types import SkillEvent
from tests.records import call, episode


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
