"""Drift measured from what a cycle has recorded of both versions' held-out answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agent.errors import EngineError, EngineUnavailableError
from graders.catalog import find_grader
from learner.drift import DriftConfig, ProbeFigures
from learner.drift_proof import DriftProof
from learner.rollouts import Practice
from memory.store import Store
from memory.task_store import add_task
from memory.types import Call, Cycle, CycleStage, Message, Split, TaskSpec
from tests import records

PROBE = ProbeFigures(num_tokens=9, base=-1.0, live=-1.0, candidate=-1.1)
PRACTISED, OTHERS = range(1, 6), range(6, 10)


class FakeProbe:
    async def compare(self, live: str, candidate: str) -> tuple[ProbeFigures | None, str | None]:
        assert (live, candidate) == ("base", "denizen-000001")
        return PROBE, None


async def sample(
    *, adapter: str, messages: Sequence[Message], sampling: Mapping[str, Any], num_samples: int
) -> list[Call]:
    """Answer in six tokens; a version in two, the last task's withheld from the record."""
    num = int(str(messages[0]["content"]).split()[0])
    ids = (40, 41, 42, 43, 44, 2) if adapter == "base" else (40, 2)
    is_dumb = num == OTHERS[-1] and adapter != "base"
    answer = records.call(
        id=f"call-{adapter}-{num}",
        episode_id=f"ep-{adapter}-{num}",
        adapter=adapter,
        prompt_token_ids=(1, 100 + num),
        completion_token_ids=None if is_dumb else ids,
        sampler_logprobs=None if is_dumb else (-0.2,) * len(ids),
    )
    return [answer]


def tasks(store: Store) -> list[TaskSpec]:
    def write(db: Any) -> None:
        for number in (*PRACTISED, *OTHERS):
            messages = [{"role": "user", "content": f"{number} and so on"}]
            add_task(db, records.task(number, messages=messages, split=Split.HELDOUT))

    store.database.write(write)
    return [store.tasks.get(records.task(number).id) for number in (*PRACTISED, *OTHERS)]


async def answered(store: Store, held: list[TaskSpec]) -> Cycle:
    practice = Practice(sample=sample, grader_of=lambda task: find_grader(task.grader), store=store)
    cycle = records.cycle(start_version="base")
    store.cycles.start(cycle)
    for name, adapter in (("before", "base"), ("after", "denizen-000001")):
        await practice.score(held, adapter=adapter, stage=CycleStage(cycle_id=cycle.id, name=name))
    return cycle


async def test_answers_are_compared_apart_for_practised_skills_and_others(store: Store) -> None:
    held = tasks(store)
    cycle = await answered(store, held)
    asked: list[tuple[int, ...]] = []

    async def logprobs(*, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        assert adapter == "base"
        asked.append(tuple(token_ids))
        return [None, -9.0, *[-0.7] * (len(token_ids) - 2)]

    proof = DriftProof(store, logprobs, FakeProbe(), DriftConfig())  # type: ignore[arg-type]
    drift = await proof.measure(cycle, "denizen-000001", {task.id for task in held[:5]})
    assert drift.practised is not None
    assert drift.others is not None
    assert drift.practised.before.num_answers == 5
    assert drift.others.before.num_answers == 3, "one has no tokens on one side"
    for kind in (drift.practised, drift.others):
        assert (kind.before.mean_tokens, kind.after.mean_tokens) == (6.0, 2.0)
        assert kind.kl == pytest.approx(2.718281828**-0.5 + 0.5 - 1)
    assert sorted(asked) == [(1, 100 + number, 40, 2) for number in range(1, 9)]
    assert drift.probe == PROBE


@pytest.mark.parametrize("error", [EngineError("broken"), EngineUnavailableError("gone")])
async def test_an_answer_that_cannot_be_asked_about_is_left_out_and_an_engine_that_is_gone_told(
    store: Store, error: Exception
) -> None:
    held = tasks(store)
    cycle = await answered(store, held)

    async def fails(*, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        if token_ids[1] == 101:
            raise error
        return [-0.2] * len(token_ids)

    proof = DriftProof(store, fails, FakeProbe(), DriftConfig())  # type: ignore[arg-type]
    practised = {task.id for task in held}
    if isinstance(error, EngineUnavailableError):
        with pytest.raises(EngineUnavailableError):
            await proof.measure(cycle, "denizen-000001", practised)
        return
    drift = await proof.measure(cycle, "denizen-000001", practised)
    assert drift.practised is not None
    assert drift.practised.kl == 0.0, "of the others"


async def test_answers_without_log_probabilities_have_lengths_and_no_kl(store: Store) -> None:
    held = tasks(store)
    cycle = await answered(store, held)
    store.database.write(lambda db: db.execute("UPDATE calls SET sampler_logprobs = NULL"))

    async def never(*, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        raise AssertionError("nobody needs to ask")

    proof = DriftProof(store, never, FakeProbe(), DriftConfig())  # type: ignore[arg-type]
    drift = await proof.measure(cycle, "denizen-000001", {task.id for task in held})
    assert drift.practised is not None
    assert drift.practised.after.mean_tokens == 2.0
    assert (drift.practised.after.mean_surprisal, drift.practised.kl) == (None, None)


async def test_without_other_skills_nothing_is_said_of_them(store: Store) -> None:
    held = tasks(store)
    cycle = await answered(store, held)

    async def unknown(*, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        return [None] * len(token_ids)

    proof = DriftProof(store, unknown, FakeProbe(), DriftConfig())  # type: ignore[arg-type]
    drift = await proof.measure(cycle, "denizen-000001", {task.id for task in held})
    assert drift.others is None
    assert drift.practised is not None
    assert drift.practised.kl is None
