"""What is found for a task, over episodes that are sorted as the service sorts them."""

from typing import Any

import pytest

from memory.fences import ControlTokens
from memory.recall import Recall, RecallConfig, Recalled
from memory.store import Store
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
            reader=desk.sorter,
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
