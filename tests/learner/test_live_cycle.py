"""Cycles that learn from what was recorded, and that rehearse what they are not about."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graders.catalog import find_grader
from learner.curriculum import LearnerConfig
from learner.cycle import LearningCycle
from learner.gate import GateConfig
from learner.live_groups import LiveGroups
from learner.live_proof import LiveProof
from learner.registry import Registry
from learner.rehearsal import RehearsalRows
from learner.rollouts import Practice
from learner.sources import JoinedRows, PracticeRows, StepPlan
from learner.workshop import LiveWork, Workshop
from memory.neighbours import Neighbours
from memory.store import Store
from memory.task_store import add_task
from memory.types import (
    Call,
    Cycle,
    CycleState,
    Edge,
    EpisodeSource,
    SkillPolicy,
    Split,
)
from tests import records
from tests.graders.judged import found_skill
from tests.learner.adapters import FIT
from tests.learner.test_cycle_trust import FakePointer, FakeTraining, FakeWeights, sample

LIVE_ONLY, PRACTISED, OTHER = 1, 2, 3
CONFIG = LearnerConfig(
    group_size=4,
    tasks_per_step=4,
    steps_per_cycle=2,
    min_train_tasks=1,
    min_heldout_tasks=1,
    min_live_episodes=8,
    live_episodes_per_step=8,
    live_heldout_share=0.5,
)
NUM_EPISODES = 24


class Likelihoods:
    """Finds even tokens likelier to the candidate, by what it is told."""

    def __init__(self, gain: float) -> None:
        self.gain = gain
        self.asked: set[str] = set()

    async def __call__(self, *, adapter: str, token_ids: Sequence[int]) -> list[float | None]:
        """Answer as the engine does: nothing precedes the first token."""
        self.asked.add(adapter)
        gain = 0.0 if adapter == "base" else self.gain
        return [None, *(-1.0 + gain * (token % 2 == 0) for token in token_ids[1:])]


def two_turns(number: int, sampled: int) -> list[Call]:
    """Return an episode of a program: it asks, a tool answers 70 71, it asks again."""
    first, second = f"c{number}a", f"c{number}b"
    prompt = (1, 100 + number)
    calls = [
        records.call(id=first, prompt_token_ids=prompt, completion_token_ids=(sampled, 2)),
        records.call(
            id=second,
            prompt_token_ids=(*prompt, sampled, 2, 70, 71),
            completion_token_ids=(sampled, 2),
            parent_id=first,
            edge=Edge.CONTINUATION,
        ),
    ]
    return [replace(call, episode_id=f"ep_{number:03d}") for call in calls]


async def put_live(
    store: Store,
    number: int,
    outcome: float | None,
    *,
    samplers: Sequence[str] = ("base", "base"),
    **fields: Any,
) -> None:
    """Record a graded episode: good ones sample token 40, bad ones 41."""
    turns = two_turns(number, 41 if outcome == 0.0 else 40)
    calls = [replace(call, adapter=by) for call, by in zip(turns, samplers, strict=True)]
    episode = records.episode(
        id=f"ep_{number:03d}",
        source=fields.pop("source", EpisodeSource.HARNESS),
        task_text=f"mend {number}",
        skill_id=LIVE_ONLY,
        **fields,
    )
    vector = np.random.default_rng(number).normal(size=4).astype("<f4").tobytes()
    await store.episodes.record(episode, calls, [None, None])

    def write(db: Any) -> None:
        sql = """UPDATE episodes SET outcome_value = ?, outcome_provenance = 'check',
            outcome_num_grades = 1, digested_revision = revision WHERE id = ?"""
        db.execute(sql, (outcome, episode.id))
        sql = "INSERT INTO vectors (episode_id, embedder, vector) VALUES (?, 'hash', ?)"
        db.execute(sql, (episode.id, vector))

    store.database.write(write)


def put_tasks(store: Store, skill_id: int, num_train: int, num_heldout: int) -> None:
    def write(db: Any) -> None:
        for n in range(num_train + num_heldout):
            split = Split.TRAIN if n < num_train else Split.HELDOUT
            add_task(db, records.task(skill_id * 100 + n, split=split, skill_id=skill_id))

    store.database.write(write)


@pytest.fixture
def training() -> FakeTraining:
    return FakeTraining()


def cycle_of(
    store: Store,
    training: FakeTraining,
    folder: Path,
    skills: Sequence[int],
    *,
    gain: float = 0.3,
    goes_live: bool = False,
    **settings: Any,
) -> LearningCycle:
    config, gate = CONFIG.model_copy(update=settings), GateConfig(min_tasks=4)
    practice = Practice(sample=sample, grader_of=lambda task: find_grader(task.grader), store=store)
    fresh = PracticeRows(practice, config)
    groups = LiveGroups(store, Neighbours(store.database, embedder_id="hash"), config)
    rehearsed = RehearsalRows(fresh, store, config)
    proof = LiveProof(groups, Likelihoods(gain), gate, max_episodes=48)
    shop = Workshop(
        store=store,
        registry=Registry(store.versions, folder / "adapters", FIT),
        pointer=FakePointer(),  # type: ignore[arg-type]
        practice=practice,
        rows=JoinedRows(fresh, groups),
        extra_rows=[rehearsed],
        sampled_ahead=[fresh, rehearsed] if config.overlap else [],
        weights=FakeWeights(),
        open_training=lambda _parent, _step: training,  # type: ignore[arg-type, return-value]
        base_digest=FIT.base_digest,
        work_dir=folder / "work",
        learner=config,
        gate=gate,
        promotes_by_itself=True,
        live=LiveWork(groups=groups, proof=proof, promotes_by_itself=goes_live),
    )
    cycle: Cycle = records.cycle(skill_ids=tuple(skills), created_at=records.later(60))
    store.cycles.start(cycle)
    return LearningCycle(cycle, shop)


@pytest.fixture
async def live_store(store: Store) -> Store:
    for skill_id in (LIVE_ONLY, PRACTISED, OTHER):
        found_skill(store, skill_id)
    for number in range(NUM_EPISODES):
        await put_live(store, number, float(number % 2))
    return store


def held_out(store: Store, cycle: LearningCycle) -> set[str]:
    live = cycle.workshop.live
    assert live is not None
    return {one.episode.id for one in live.groups.record(cycle.cycle).heldout}


async def test_recorded_episodes_of_many_turns_are_trained_and_the_candidate_proposed(
    live_store, training, tmp_path
):
    put_tasks(live_store, OTHER, 4, 6)
    learning = cycle_of(live_store, training, tmp_path, [LIVE_ONLY])
    cycle = await learning.run()
    assert cycle.state is CycleState.PROPOSED, cycle.end_reason
    assert "not replayable: a person decides" in cycle.end_reason
    live = [row for row in training.rows if row["group_id"].startswith("live-")]
    number = {row["group_id"]: row["token_ids"][1] - 100 for row in live}
    row = live[0]
    good = number[row["group_id"]] % 2
    assert row["token_ids"][2:] == [41 - good, 2, 70, 71, 41 - good, 2]
    assert row["loss_mask"] == [0, 0, 1, 1, 0, 0, 1, 1], "what the tool said is not trained"
    for row in live:
        assert (row["advantages"][-1] > 0) == bool(number[row["group_id"]] % 2)
    taught = set(live_store.versions.episodes_of(cycle.candidate))
    wall = held_out(live_store, learning)
    assert wall, "something is held out"
    assert not taught & wall
    assert {f"ep_{n:03d}" for n in number.values()} <= taught
    assert cycle.receipt["live_rows"] == len(live) > 0
    assert cycle.receipt["live"]["unexplained_share"] is not None
    assert cycle.gate["live"]["num_episodes"] == len(wall)
    assert cycle.gate["overall"]["num_tasks"] == 6, "other skills guard it"
    assert cycle.receipt["rehearsal_rows"] > 0


@pytest.mark.parametrize(
    ("gain", "goes_live", "state"),
    [
        (-0.3, True, CycleState.REJECTED),
        (0.0, True, CycleState.INCONCLUSIVE),
        (0.3, True, CycleState.PROMOTED),
        (0.3, False, CycleState.PROPOSED),
    ],
)
async def test_recorded_answers_decide_and_only_a_setting_lets_them_promote(
    live_store, training, tmp_path, gain, goes_live, state
):
    learning = cycle_of(live_store, training, tmp_path, [LIVE_ONLY], gain=gain, goes_live=goes_live)
    cycle = await learning.run()
    assert cycle.state is state, cycle.end_reason


async def test_a_cycle_of_recorded_episodes_ends_when_all_had_their_turns(
    live_store, training, tmp_path
):
    learning = cycle_of(live_store, training, tmp_path, [LIVE_ONLY], steps_per_cycle=9)
    groups, config = learning.workshop.live.groups, learning.workshop.learner
    num = config.live_epochs * len(groups.record(learning.cycle).train)
    cycle = await learning.run()
    steps = live_store.cycles.steps(cycle.id)
    assert len(steps) == math.ceil(num / config.live_episodes_per_step) < 9
    assert cycle.receipt["live_rows"] == num
    assert all(step.receipt["live_rows"] for step in steps)


async def test_practice_and_recorded_episodes_join_in_one_step_where_both_exist(
    live_store, training, tmp_path
):
    put_tasks(live_store, LIVE_ONLY, 4, 6)
    cycle = await cycle_of(live_store, training, tmp_path, [LIVE_ONLY]).run()
    assert cycle.gate is not None, cycle.end_reason
    assert "live" not in cycle.gate, "held-out tasks prove it"
    [first, _] = [step.receipt for step in live_store.cycles.steps(cycle.id)]
    assert first["live_rows"] > 0
    assert first["num_rows"] == first["live_rows"] + 4 * CONFIG.group_size


async def test_episodes_of_a_skill_that_nothing_held_out_would_prove_stay_out(
    live_store, training, tmp_path
):
    put_tasks(live_store, PRACTISED, 4, 6)
    cycle = await cycle_of(live_store, training, tmp_path, [LIVE_ONLY, PRACTISED]).run()
    assert cycle.gate is not None, cycle.end_reason
    assert cycle.receipt["live_rows"] == 0


@pytest.mark.parametrize("overlap", [False, True])
async def test_rehearsed_tasks_are_practised_and_counted_apart(
    live_store, training, tmp_path, overlap
):
    put_tasks(live_store, PRACTISED, 8, 6)
    put_tasks(live_store, OTHER, 5, 0)
    settings = {"rehearsal_share": 0.5, "overlap": overlap}
    cycle = await cycle_of(live_store, training, tmp_path, [PRACTISED], **settings).run()
    steps = [step.receipt for step in live_store.cycles.steps(cycle.id)]
    assert [step["staleness_mean"] for step in steps] == [0, int(overlap)], "as old as its own rows"
    assert [step["rehearsal_tasks"] for step in steps] == [2, 2]
    assert [step["rehearsal_rows"] for step in steps] == [8, 8]
    assert cycle.receipt["rehearsal_rows"] == 16
    others = [row for row in training.rows if row["token_ids"][0] // 100 == OTHER]
    assert len(others) == 16
    assert len({row["token_ids"][0] for row in others}) == 4, "other tasks in the next step"
    assert steps[0]["rollouts_by_provenance"] == {"check": 16}, "a step's own alone"


@pytest.mark.parametrize(
    ("settings", "policy"), [({"rehearsal_share": 0.0}, "learn"), ({}, "paused")]
)
async def test_nothing_is_rehearsed_where_it_is_off_or_a_skill_may_not_be_learned(
    live_store, training, tmp_path, settings, policy
):
    put_tasks(live_store, PRACTISED, 4, 6)
    put_tasks(live_store, OTHER, 5, 0)
    sql = "UPDATE skills SET policy = ? WHERE id = ?"
    paused = (SkillPolicy(policy).value, OTHER)
    live_store.database.write(lambda db: db.execute(sql, paused))
    cycle = await cycle_of(live_store, training, tmp_path, [PRACTISED], **settings).run()
    assert cycle.receipt["rehearsal_rows"] == 0
    assert not [row for row in training.rows if row["token_ids"][0] // 100 == OTHER]


async def test_a_skill_with_nothing_to_learn_from_says_what_is_missing(store, training, tmp_path):
    found_skill(store, LIVE_ONLY)
    for number in range(5):
        await put_live(store, number, float(number % 2))
    cycle = await cycle_of(store, training, tmp_path, [LIVE_ONLY]).run()
    assert cycle.state is CycleState.NO_SIGNAL
    assert cycle.end_reason == (
        "the skills have no training tasks; none of 5 recorded episodes can teach; left out: "
        "5 too_few"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"learn": False},
        {"withheld": "control_tokens"},
        {"tenant": "acme"},
        {"source": EpisodeSource.PRACTICE},
    ],
)
async def test_what_may_not_teach_is_never_read(store, fields: Mapping[str, Any]):
    found_skill(store, LIVE_ONLY)
    await put_live(store, 1, 1.0)
    await put_live(store, 2, 1.0, **fields)
    await put_live(store, 3, None)
    found = store.graded.newest([LIVE_ONLY], until=records.later(60), limit=9)
    assert [one.id for one in found] == ["ep_001"]
    assert found[0].samplers == ("base",)
    assert store.graded.newest([LIVE_ONLY], until=records.later(-1), limit=9) == []
    skill = store.skills.get(LIVE_ONLY)
    counted = 1 if "tenant" not in fields else 2  # a tenant's skill is its own
    assert (skill.num_live_graded, skill.has_live_contrast) == (counted, False)


async def test_an_episode_that_made_a_task_is_practised_and_does_not_count(store):
    found_skill(store, LIVE_ONLY)
    await put_live(store, 1, 1.0)
    await put_live(store, 2, 0.0)
    task = records.task(7, origin="episode:ep_002", skill_id=LIVE_ONLY)
    store.database.write(lambda db: add_task(db, task))
    found = store.graded.newest([LIVE_ONLY], until=records.later(60), limit=9)
    assert [one.is_replayable for one in found] == [False, True]
    assert store.skills.get(LIVE_ONLY).num_live_graded == 1


async def test_traffic_of_old_weights_stays_out_and_slow_tasks_keep_their_share(store):
    """Case P-41: version 9 is live, four versions are the limit."""
    found_skill(store, LIVE_ONLY)
    oldest, old, live = (f"denizen-{number:06d}" for number in (1, 5, 9))
    for number in range(200):
        began = oldest if number % 10 == 9 else old if number % 3 == 0 else live
        await put_live(store, number, float(number % 2), samplers=(began, live))
    await put_live(store, 200, 1.0, samplers=("elsewhere", live))
    cycle = records.cycle(start_version=live, skill_ids=(LIVE_ONLY,), created_at=records.later(60))
    store.cycles.start(cycle)
    config = CONFIG.model_copy(update={"live_episodes_per_step": 200, "live_heldout_share": 0.25})
    groups = LiveGroups(store, Neighbours(store.database, embedder_id="hash"), config)
    plan = StepPlan(cycle_id="cycle_1", index=1, adapter=live, tasks=())
    gathered = await groups.gather(plan)
    numbers = [int(episode.removeprefix("ep_")) for episode in gathered.episode_ids]
    assert not [number for number in numbers if number % 10 == 9]
    slow = [number for number in numbers if number % 3 == 0]
    # 60 of the 180 that are not too old
    assert len(slow) / len(numbers) == pytest.approx(1 / 3, abs=0.05)
    told = gathered.to_json()["live"]
    assert told["num_train"] == len(numbers) == len(gathered.batch.rows)
    num_stale = told["skipped"]["stale"]
    assert told["num_heldout"] + len(numbers) + num_stale == 201
    ages = {"0": len(numbers) - len(slow), "4": len(slow), "8": num_stale - 1, "unknown": 1}
    assert told["ages_by_skill"] == {str(LIVE_ONLY): ages}


def test_a_version_has_learned_what_those_before_it_learned(store):
    store.versions.add(records.version(1), ["ep_1"])
    store.versions.add(records.version(2, parent="denizen-000001", sha256="c" * 64), ["ep_2"])
    assert store.graded.taught("denizen-000002") == {"ep_1", "ep_2"}
    assert store.graded.taught("denizen-000001") == {"ep_1"}
    assert store.graded.taught("base") == set()


async def test_asked_again_for_a_step_the_sources_answer_the_same(live_store, training, tmp_path):
    """A service that goes on with a cycle must come to where the first one would have come."""
    put_tasks(live_store, PRACTISED, 4, 6)
    put_tasks(live_store, OTHER, 5, 6)
    cycle = cycle_of(live_store, training, tmp_path, [LIVE_ONLY])
    shop, plans = cycle.workshop, [StepPlan(cycle_id="cycle_1", index=1, adapter="base", tasks=())]
    cycle._tasks()  # the choice of what is rehearsed is written down
    plans += [replace(plans[0], index=2)]
    told = []
    for _ in range(2):
        for plan in plans:
            found = await shop.rows.gather(plan)
            more = await shop.extra_rows[0].gather(plan)
            told.append((found.batch.rows, more.batch.rows, found.episode_ids | more.episode_ids))
        # What came since is left for the next cycle.
        late = records.task(900 + len(told), skill_id=OTHER)
        live_store.database.write(lambda db, late=late: add_task(db, late))
        await put_live(live_store, 500 + len(told), 1.0, created_at=records.later(90))
    assert told[:2] == told[2:]
    assert told[0] != told[1]
    assert all(rows for rows, more, _ in told for rows in (rows, more))


async def test_recorded_answers_that_ran_into_the_limit_are_counted(live_store, training, tmp_path):
    cycle = cycle_of(live_store, training, tmp_path, [LIVE_ONLY], live_episodes_per_step=99)
    plan = StepPlan(cycle_id="cycle_1", index=1, adapter="base", tasks=())
    cycle._tasks()
    before = await cycle.workshop.rows.gather(plan)
    assert before.batch.num_truncated == 0
    cut = sorted(before.episode_ids)[:3]
    sql = f"UPDATE calls SET finish_reason = 'length' WHERE episode_id IN {tuple(cut)!r}"
    live_store.database.write(lambda db: db.execute(sql))
    after = await cycle.workshop.rows.gather(plan)
    assert after.batch.num_truncated == 3
    assert after.batch.rows == before.batch.rows
