"""Texts that cannot be embedded: they spoil no search, are told, and are tried again."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from doctor.records import _record_in_words
from memory import checkup, embed
from memory.embed import Embedding
from memory.skill_writes import set_vector
from memory.skills import SkillsConfig
from memory.sorter import Sorter
from memory.store import Store
from memory.types import TaskSpec
from memory.vectors import EpisodeVectors
from tests import records

D = 8
TEXTS = ["add 3 and 4", "", "   ", "🦆🦆🦆", "so " * 400_000, "not a number", "nothing at all"]


class Fickle:
    """Embeds by the letters of a text; some texts come out broken, as models do."""

    dimension = D

    def __init__(self, id: str, broken: dict[str, float]) -> None:
        self.id = id
        self._broken = broken

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        return [self._embed(embed.readable(text)) for text in texts]

    def _embed(self, text: str) -> Embedding:
        if not text.strip():
            return Embedding(vector_D=None, reason="empty text")
        if text in self._broken:
            return embed._checked(np.full(D, self._broken[text], dtype=np.float32))
        seed = sum(text.encode()) + len(text)
        return embed._checked(np.random.default_rng(seed).normal(size=D).astype(np.float32))


BROKEN = Fickle("broken", {"not a number": np.nan, "nothing at all": 0.0})
MENDED = Fickle("mended", {})


@pytest.fixture
def filled(store: Store) -> Store:
    """Return a store in which each text is the task of an episode, embedded by the broken model."""

    async def record() -> None:
        for number, text in enumerate(TEXTS):
            episode = records.episode(id=f"ep_{number}", task_text=text)
            call = records.call(id=f"c{number}", episode_id=episode.id)
            await store.episodes.record(episode, [call], [None])

    asyncio.run(record())
    for number, text in enumerate(TEXTS):
        store_embedding(store, BROKEN, f"ep_{number}", text)
    return store


def store_embedding(store: Store, embedder: Fickle, id: str, text: str) -> None:
    [found] = embedder.embed([text])
    given = {"vector_D": found.vector_D, "missing_reason": found.reason}
    store.database.write(lambda db: set_vector(db, id, embedder=embedder.id, **given))


def vectors_of(store: Store, embedder: Fickle) -> EpisodeVectors:
    file = store.database.path.with_name("vectors.faiss")
    found = EpisodeVectors(store.database, embedder_id=embedder.id, dimension=D, file=file)
    found.open()
    return found


def nearest(store: Store, embedder: Fickle, text: str) -> str:
    [query] = embedder.embed([text])
    [found] = vectors_of(store, embedder).search(query.vector_D, limit=1)
    return found.episode_id


def test_p50_searches_for_other_texts_are_not_spoiled(filled):
    for number in (0, 3, 4):
        assert nearest(filled, BROKEN, TEXTS[number]) == f"ep_{number}"
    assert len(vectors_of(filled, BROKEN)) == 3


def test_p50_each_text_without_a_vector_is_kept_and_told_with_its_reason(filled):
    reasons = {
        "empty text": 2,
        "the embedding is not finite": 1,
        "the embedding is zero": 1,
    }
    found = checkup.look_into(filled.database.path, embedder_id="broken", dimension=D)
    assert found.without_vector == reasons
    rows = filled.database.read("SELECT id FROM episodes WHERE task_text LIKE 'not a %'")
    assert rows == [{"id": "ep_5"}]


def test_p50_the_doctor_names_some_of_them(filled):
    found = checkup.look_into(filled.database.path, embedder_id="broken", dimension=D)
    assert found.some_without["empty text"] == ("ep_1", "ep_2")
    assert "1 the embedding is not finite (ep_5)" in _record_in_words(found)


def test_another_embedder_tries_them_again(filled):
    assert len(vectors_of(filled, MENDED)) == 0
    assert Sorter(filled, MENDED, SkillsConfig()).renew() == len(TEXTS)
    told = checkup.look_into(filled.database.path, embedder_id=MENDED.id, dimension=D)
    assert told.without_vector == {"empty text": 2}
    assert nearest(filled, MENDED, "not a number") == "ep_5"


def test_p50_a_text_that_failed_is_tried_again_once_by_each_process(filled):
    recovered = Fickle("broken", {"nothing at all": 0.0})  # the same model; what failed has passed
    sorter = Sorter(filled, recovered, SkillsConfig())
    assert sorter.renew() == 2
    told = checkup.look_into(filled.database.path, embedder_id="broken", dimension=D)
    assert told.without_vector == {"empty text": 2, "the embedding is zero": 1}
    assert told.some_without["the embedding is zero"] == ("ep_6",)
    assert nearest(filled, recovered, "not a number") == "ep_5"
    assert sorter.renew() == 0
    assert Sorter(filled, recovered, SkillsConfig()).renew() == 1


def test_p50_a_task_that_failed_is_placed_after_the_next_start(store):
    task = records.task(messages=({"role": "user", "content": "not a number"},))
    store.tasks.add([task])
    sort_task(Sorter(store, BROKEN, SkillsConfig()), store, task)
    assert store.tasks.without_skill(9) == []
    sorter = Sorter(store, Fickle("broken", {}), SkillsConfig())
    sorter.warm_up()
    assert store.tasks.without_skill(9) == [task]
    sort_task(sorter, store, task)
    assert store.tasks.get(task.id).skill_id == 1


def sort_task(sorter: Sorter, store: Store, task: TaskSpec) -> None:
    [found] = sorter.sort_tasks([task])
    store.database.write(lambda db: sorter.save_task(db, found))


def test_p49_an_embedder_of_another_dimension_starts_empty_and_ends_no_process(filled):
    wider = EpisodeVectors(
        filled.database,
        embedder_id="broken",
        dimension=2 * D,
        file=filled.database.path.with_name("vectors.faiss"),
    )
    wider.open()
    assert wider.search(np.ones(2 * D, dtype=np.float32), limit=3) == []
    assert len(wider) == 0
