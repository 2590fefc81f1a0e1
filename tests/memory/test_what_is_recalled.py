"""What is found for a task, over episodes that are sorted as the service sorts them."""

from typing import Any

import pytest

from memory import good_episodes
from memory.fences import ControlTokens
from memory.guidelines import Guidelines
from memory.recall import Recall, RecallConfig, Recalled
from memory.store import Store
from memory.types import EpisodeSource
from memory.vectors import EpisodeVectors
from tests import records
from tests.memory.sorting import Desk

PATIENT = RecallConfig(deadline_ms=30_000)
PREAMBLE = "\n".join(f"Rule {n}: the harbour master keeps a list of ships {n}." for n in range(60))
SUMS = [f"sum {n}" for n in range(9)]


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


@pytest.fixture
def recaller(desk: Desk):
    """Return a way to recall with settings of one's own."""
    made: list[Recall] = []

    def make(config: RecallConfig = PATIENT) -> Recall:
        index = EpisodeVectors(
            desk.store.database,
            embedder_id=desk.embedder.id,
            dimension=desk.embedder.dimension,
            file=desk.store.database.path.with_name("vectors.faiss"),
        )
        recall = Recall(
            desk.store,
            embedder=desk.embedder,
            index=index,
            sorting=desk.sorter,
            config=config,
            control_tokens=ControlTokens(),
        )
        made.append(recall)
        return recall

    yield make
    for recall in made:
        recall.close()


async def praise(desk: Desk, *episode_ids: str, outcome: float = 1.0) -> None:
    """Give episodes an answer and an outcome."""
    for id in episode_ids:
        call = records.call(id=f"c-{id}", episode_id=id)
        await desk.store.episodes.record(desk.store.episodes.get(id), [call], [None])
    marks = ", ".join("?" * len(episode_ids))
    sql = f"UPDATE episodes SET outcome_value = ? WHERE id IN ({marks})"
    desk.store.database.write(lambda db: db.execute(sql, (outcome, *episode_ids)))


async def found(recall: Recall, *said: str, **fields: Any) -> Recalled | None:
    about = {"tenant": None, "task_key": None, "but": "ep_new"} | fields
    return await recall.recall(said, **about)


async def test_a_task_behind_a_preamble_is_found_and_quoted_without_it(
    desk: Desk, recaller
) -> None:
    ids = desk.record(*(f"{PREAMBLE}\n\nsum {n}" for n in range(8)))
    desk.regrouping.look()  # what the first of them were embedded as, before it was known
    await praise(desk, ids[0])
    recalled = await found(recaller(), f"{PREAMBLE}\n\nsum 8")
    assert recalled is not None
    assert [(one.episode_id, one.task) for one in recalled.examples] == [(ids[0], "sum 0")]
    assert "harbour" not in recalled.block


async def test_what_was_said_in_several_messages_is_looked_for_as_it_was_sorted(
    desk: Desk, recaller
) -> None:
    for n in range(8):
        [id] = desk.record(f"sum {n}")
    await praise(desk, id)
    assert await found(recaller(), "nothing of the kind", "sum 8") is None
    assert await found(recaller(), "sum 8", "nothing of the kind") is not None


async def test_a_good_episode_is_recalled_though_sixty_ungraded_ones_are_nearer(
    desk: Desk, recaller
) -> None:
    ids = desk.record(*(f"sum {n}" for n in range(61)))
    [asked] = desk.embedder.embed(["sum new"])
    vectors = desk.embedder.embed([f"sum {n}" for n in range(61)])
    nearness = {
        id: float(one.vector_D @ asked.vector_D) for id, one in zip(ids, vectors, strict=True)
    }
    farthest = min(nearness, key=nearness.__getitem__)
    await praise(desk, farthest)
    recalled = await found(recaller(), "sum new")
    assert recalled is not None
    assert [one.episode_id for one in recalled.examples] == [farthest]


async def test_the_guideline_comes_without_any_episode_that_went_well(desk: Desk, recaller) -> None:
    ids = desk.record(*SUMS)
    await praise(desk, *ids, outcome=0.2)
    Guidelines(desk.store.database).set(1, "Answer with the bare number.")
    recalled = await found(recaller(), "sum new")
    assert recalled is not None
    assert (recalled.has_guideline, recalled.examples) == (True, [])
    assert "bare number" in recalled.block
    assert await found(recaller(), "lone question") is None


async def test_the_guideline_of_a_skill_of_imported_tasks_alone_is_told(
    desk: Desk, recaller
) -> None:
    task = records.task(messages=({"role": "user", "content": "sum 1"},))
    desk.store.tasks.add([task])
    [placed] = desk.sorter.sort_tasks([task])
    desk.store.database.write(lambda db: desk.sorter.save_task(db, placed))
    Guidelines(desk.store.database).set(1, "Answer with the bare number.")
    recalled = await found(recaller(), "sum new")
    assert recalled is not None
    assert recalled.has_guideline


async def test_looking_moves_no_skill_and_lets_nothing_wait(desk: Desk, recaller) -> None:
    await praise(desk, *desk.record(*SUMS))
    recall = recaller()
    before = desk.sorter._assigner._skills[1]
    for _ in range(5):
        assert await found(recall, "lone question") is None
        assert await found(recall, "sum new") is not None
    assert desk.sorter._assigner._skills[1] is before
    [waits] = desk.record("lone question")
    assert desk.skills()[waits] is None


async def test_of_good_episodes_the_nearest_are_told_each_task_once(desk: Desk, recaller) -> None:
    ids = desk.record(*SUMS, "sum 3", "sum 3 ")
    await praise(desk, *ids)
    recalled = await found(recaller(), "sum 3", but=ids[3])
    assert recalled is not None
    first = recalled.examples[0]
    assert (first.task, first.similarity) == ("sum 3", 1.0)
    assert [one.task for one in recalled.examples].count("sum 3") == 1
    assert len(recalled.examples) == PATIENT.max_episodes
    assert ids[3] not in {one.episode_id for one in recalled.examples}
    similarities = [one.similarity for one in recalled.examples]
    assert similarities == sorted(similarities, reverse=True)


async def test_a_skill_that_became_part_of_another_recalls_the_others_episodes(
    desk: Desk, recaller
) -> None:
    await praise(desk, *desk.record(*SUMS, "word 1", "word 2", "word 3"))
    desk.store.skills.merge(1, into=2)  # the sorter has not read that yet
    recalled = await found(recaller(), "sum new")
    assert recalled is not None
    assert recalled.skill_id == 2


async def test_an_older_good_episode_than_those_compared_is_found_by_the_index(
    desk: Desk, recaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(good_episodes, "NEWEST", 3)
    ids = desk.record(*SUMS)
    await praise(desk, *ids)
    recalled = await found(recaller(), "sum 0")
    assert recalled is not None
    assert recalled.examples[0].episode_id == ids[0]


async def test_what_is_kept_from_learning_practice_and_others_is_not_recalled(
    desk: Desk, recaller
) -> None:
    founders = desk.record(*SUMS)
    await praise(desk, *founders)
    kept = {"learn": False}, {"learn": False, "withheld": "control_tokens"}
    hidden = [desk.record("sum new", **fields)[0] for fields in kept]
    hidden += desk.record("sum new", source=EpisodeSource.PRACTICE)
    await praise(desk, *hidden)
    recalled = await found(recaller(), "sum new")
    assert recalled is not None
    assert {one.episode_id for one in recalled.examples} <= set(founders)
    assert await found(recaller(), "sum new", tenant="acme") is None
