"""A cycle whose service ended: what the next service finds, goes on with, or ends.

The whole of it, killed in every phase, is in ``tests/service/test_cycle_kills.py``.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from graders.catalog import find_grader
from learner.adapter_files import moments_path
from learner.curriculum import LearnerConfig
from learner.errors import CycleStoppedError
from learner.gate import GateConfig
from learner.registry import Registry
from learner.rollouts import Practice
from learner.rows import RowBatch, SkipReason
from learner.runner import MAX_DEATHS, CycleRunner
from learner.sources import Gathered, PracticeRows, RowSource, StepPlan
from learner.workshop import Workshop
from memory.errors import ConflictError, InvalidRequestError
from memory.store import Store
from memory.task_store import add_task
from memory.types import Call, Cycle, CycleStage, CycleState, Message, Split, VersionStatus, new_id
from tests import records
from tests.graders.judged import found_skill
from tests.learner.adapters import FIT, write_adapter
from tests.learner.test_cycle_trust import FakePointer, FakeWeights
from tests.learner.training_rows import make_row

SKILL = 1
CONFIG = LearnerConfig(
    group_size=2, tasks_per_step=2, steps_per_cycle=3, min_train_tasks=1, min_heldout_tasks=1
)
STEP = CycleStage(cycle_id="cycle_1", name="step-01")


class Sampling:
    """Answers every other time rightly, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, int | None]] = []  # adapter, question, seed

    async def __call__(
        self,
        *,
        adapter: str,
        messages: Sequence[Message],
        sampling: Mapping[str, Any],
        num_samples: int,
    ) -> list[Call]:
        question = str(messages[0]["content"])
        self.asked.append((adapter, question, sampling.get("seed")))
        number = question.split()[0]
        return [
            records.call(
                id=new_id("c"),
                episode_id=new_id("ep"),
                adapter=adapter,
                message={"role": "assistant", "content": number if n % 2 == 0 else "no"},
                sampler_logprobs=(-1 / 3, None),  # no float32
            )
            for n in range(num_samples)
        ]


class Training:
    """Writes adapters and moments; at the step ``hangs_at`` it never answers."""

    def __init__(self) -> None:
        self.opened_from: list[Path | None] = []
        self.trained: list[str] = []  # the rows of each step
        self.hangs_at: int | None = None
        self.reached = asyncio.Event()

    def open(self, _parent: Path | None, resume_from: Path | None) -> "Training":
        self.opened_from.append(resume_from)
        return self

    async def __aenter__(self) -> "Training":
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def step(
        self, rows_path: Path, out_dir: Path, *, keep_moments: bool = False
    ) -> dict[str, Any]:
        if out_dir.name == f"step-{self.hangs_at:02d}" if self.hangs_at else False:
            self.reached.set()
            await asyncio.Event().wait()
        self.trained.append(rows_path.read_text("utf-8"))
        out_dir.mkdir()
        write_adapter(out_dir)
        if keep_moments:
            moments_path(out_dir).touch()
        return {"trained_tokens": 4, "grad_norm": 1.0}

    async def effect(self) -> None:
        return None


class Rehearsal:
    """Has one row for each step, of an episode that it skipped another for."""

    async def gather(self, plan: StepPlan) -> Gathered:
        batch = RowBatch(
            rows=(make_row(seed=plan.index, advantage=0.5),),
            num_groups=2,
            num_rollouts=2,
            num_trained_groups=1,
            num_truncated=0,
            skipped_groups={SkipReason.STALE: 1},
            skipped_rollouts={SkipReason.STALE: 1},
        )
        return Gathered(batch=batch, episode_ids=frozenset({"ep_old"}), receipt={"rehearsed": 1})


@pytest.fixture
def filled(store: Store) -> Store:
    found_skill(store, SKILL)

    def write(db) -> None:
        for number in range(10):
            split = Split.TRAIN if number < 6 else Split.HELDOUT
            origin = "episode:ep_live" if number == 5 else "api"
            add_task(db, records.task(number, split=split, skill_id=SKILL, origin=origin))

    store.database.write(write)
    return store


@pytest.fixture
def start(filled, tmp_path) -> Callable[..., tuple[CycleRunner, Sampling, Training]]:
    """Start what runs cycles, as each service does anew."""

    def start(
        *,
        config: LearnerConfig = CONFIG,
        base_digest: str = "b" * 64,
        is_ready: bool = True,
        extra_rows: Sequence[RowSource] = (),
    ) -> tuple[CycleRunner, Sampling, Training]:
        sampling, training = Sampling(), Training()
        practice = Practice(
            sample=sampling, grader_of=lambda t: find_grader(t.grader), store=filled
        )
        shop = Workshop(
            store=filled,
            registry=Registry(filled.versions, tmp_path / "adapters", FIT),
            pointer=FakePointer(),  # type: ignore[arg-type]
            practice=practice,
            rows=PracticeRows(practice, config),
            extra_rows=extra_rows,
            weights=FakeWeights(),
            base_digest=base_digest,
            open_training=training.open,  # type: ignore[arg-type]
            work_dir=tmp_path / "work",
            learner=config,
            gate=GateConfig(min_tasks=2),
            promotes_by_itself=False,
        )
        return CycleRunner(shop, is_engine_ready=lambda: is_ready), sampling, training

    return start


@pytest.fixture
async def stopped(start, filled) -> tuple[Cycle, Sampling, Training]:
    """Return a cycle whose service was stopped in its second step, and what that one did."""
    runner, sampling, training = start()
    training.hangs_at = 2
    cycle = runner.start([SKILL], reason="a test")
    await training.reached.wait()
    await runner.stop()
    return filled.cycles.get(cycle.id), sampling, training


async def ended(runner: CycleRunner) -> None:
    task = runner._task
    assert task is not None
    await asyncio.gather(task, return_exceptions=True)


async def test_a_stopped_cycle_waits_with_no_words_in_files(stopped, tmp_path):
    cycle, _, _ = stopped
    assert (cycle.state, cycle.was_stopped, cycle.ended_at) == (CycleState.RUNNING, True, None)
    left = {path.name for path in (tmp_path / "work" / cycle.id).iterdir()}
    assert left == {"step-01", "step-01.moments.safetensors"}


async def test_the_next_service_passes_over_what_is_done_and_comes_to_the_same_end(
    stopped, start, filled, tmp_path
):
    cycle, _, first_training = stopped
    runner, sampling, training = start()
    runner.adopt()
    assert runner.running is not None
    runner.take_up()
    await ended(runner)
    found = filled.cycles.get(cycle.id)
    assert (found.num_resumes, found.num_deaths) == (1, 0)
    assert found.candidate == "denizen-000001"
    assert found.receipt["num_steps"] == 3
    assert [step.index for step in filled.cycles.steps(cycle.id)] == [1, 2, 3]
    assert not (tmp_path / "work" / cycle.id).exists()
    # The held-out tasks and both steps' tries stood in the store; only the third is sampled anew.
    names = {adapter for adapter, _, _ in sampling.asked}
    assert names == {f"denizen-000001-step-02-{cycle.id[-8:]}", "denizen-000001"}
    assert training.opened_from == [tmp_path / "work" / cycle.id / "step-01"]
    assert len(training.trained) == 2
    # Each step has rows of its own, and all that taught is noted with the version.
    assert len({*first_training.trained, *training.trained}) == 3
    assert len(filled.versions.episodes_of("denizen-000001")) == 3 * 2 * 2


async def test_a_step_that_was_being_sampled_is_asked_for_again_in_the_same_words(filled, tmp_path):
    sampling = Sampling()
    practice = Practice(sample=sampling, grader_of=lambda t: find_grader(t.grader), store=filled)
    filled.cycles.start(records.cycle())
    tasks = filled.tasks.of_skills([SKILL], Split.TRAIN)[:3]
    asked: dict[str, Any] = {"adapter": "base", "num_samples": 2, "sampling": {"temperature": 1.0}}
    for stage in (STEP, dataclasses.replace(STEP, name="step-02")):
        await practice.practise(tasks, stage=stage, counts=True, **asked)
    seeds = [seed for _, _, seed in sampling.asked if seed is not None]
    assert len(set(seeds)) == len(seeds) == 6
    assert all(0 <= seed < 2**30 for seed in seeds)
    other = Sampling()
    await Practice(sample=other, grader_of=lambda t: find_grader(t.grader), store=filled).practise(
        tasks, stage=None, **asked
    )
    assert {seed for _, _, seed in other.asked} == {None}, "outside of cycles chance may do"


async def test_tasks_none_of_which_can_be_tried_have_no_score(filled):
    async def refuse(**_asked: Any) -> list[Call]:
        raise InvalidRequestError("the prompt is too long")

    practice = Practice(sample=refuse, grader_of=lambda t: find_grader(t.grader), store=filled)
    filled.cycles.start(records.cycle())
    tasks = filled.tasks.of_skills([SKILL], Split.TRAIN)[:3]
    for stage in (STEP, None):
        scores = await practice.score(tasks, adapter="base", stage=stage)
        assert scores == {task.id: None for task in tasks}


async def test_what_a_stage_has_sampled_is_read_back_to_the_last_bit(filled):
    sampling = Sampling()
    practice = Practice(sample=sampling, grader_of=lambda t: find_grader(t.grader), store=filled)
    filled.cycles.start(records.cycle())
    tasks = filled.tasks.of_skills([SKILL], Split.TRAIN)[:3]
    asked: dict[str, Any] = {"adapter": "base", "num_samples": 2, "sampling": {"temperature": 1.0}}
    first = await practice.practise(tasks, stage=STEP, counts=True, **asked)
    again = await practice.practise(tasks, stage=STEP, counts=True, **asked)
    assert again == first
    assert len(sampling.asked) == len(tasks)
    assert [[trial.outcome.value for trial in trials] for trials in first] == [[1.0, 0.0]] * 3
    [places] = filled.database.read("SELECT COUNT(*) AS n FROM cycle_episodes")
    assert places == {"n": 6}
    counted = filled.database.read("SELECT SUM(num_practised) AS n FROM tasks")
    assert counted == [{"n": 3}], "each task counts once, however often it is read back"
    with pytest.raises(CycleStoppedError, match="has sampled"):
        await practice.practise(tasks[::-1], stage=STEP, **asked)


async def test_a_killed_service_is_a_death_and_after_some_the_cycle_has_failed(
    stopped, start, filled, tmp_path
):
    cycle, _, _ = stopped
    for _ in range(MAX_DEATHS):
        filled.cycles.take_up(cycle.id)  # and the service is killed, which writes nothing down
        runner, _, _ = start()
        runner.adopt()
        assert runner.running is not None
    filled.cycles.take_up(cycle.id)
    runner, _, _ = start()
    runner.adopt()
    found = filled.cycles.get(cycle.id)
    assert (runner.running, found.state) == (None, CycleState.FAILED)
    assert "services were killed" in (found.end_reason or "")
    assert not (tmp_path / "work" / cycle.id).exists()


async def test_a_cycle_waits_for_the_engine_and_no_other_starts_before_it(stopped, start):
    cycle, _, _ = stopped
    runner, sampling, _ = start(is_ready=False)
    runner.adopt()
    await runner.check()
    assert runner.running is not None
    assert runner.running.id == cycle.id
    assert "waiting for the engine" in runner.progress.phase
    with pytest.raises(ConflictError, match=cycle.id):
        runner.start([SKILL], reason="another")
    assert sampling.asked == []


def taint_parent(store: Store, cycle_id: str) -> None:
    store.versions.add(records.version(7, status=VersionStatus.TAINTED), ())
    sql = "UPDATE cycles SET start_version = 'denizen-000007' WHERE id = ?"
    store.database.write(lambda db: db.execute(sql, (cycle_id,)))


def lose_parent(store: Store, cycle_id: str) -> None:
    sql = "UPDATE cycles SET start_version = 'denizen-000009' WHERE id = ?"
    store.database.write(lambda db: db.execute(sql, (cycle_id,)))


def lose_task(store: Store, _: str) -> None:
    store.database.write(lambda db: db.execute("DELETE FROM tasks WHERE id = 'task_0003'"))


@pytest.mark.parametrize(
    ("change", "given", "reason"),
    [
        (None, {"base_digest": "c" * 64}, "the base model is another one now"),
        (None, {"config": CONFIG.model_copy(update={"group_size": 4})}, "settings of"),
        (taint_parent, {}, "denizen-000007, which it learned on from, is tainted"),
        (lose_parent, {}, "denizen-000009, which it learned on from, is gone"),
        (lose_task, {}, "1 of its tasks are gone"),
    ],
)
async def test_a_cycle_that_would_come_to_another_end_is_ended_and_its_signal_counts_again(
    stopped, start, filled, tmp_path, change, given, reason
):
    cycle, _, _ = stopped
    assert filled.skills.get(SKILL).num_new_signal == 0
    if change is not None:
        change(filled, cycle.id)
    runner, _, _ = start(**given)
    runner.adopt()
    found = filled.cycles.get(cycle.id)
    assert (runner.running, found.state) == (None, CycleState.INTERRUPTED)
    assert reason in (found.end_reason or "")
    assert not (tmp_path / "work" / cycle.id).exists()
    assert filled.skills.get(SKILL).num_new_signal > 0


async def test_settings_of_time_and_room_may_change_while_a_cycle_waits(stopped, start):
    other = {"step_timeout_s": 7.0, "enabled": False, "max_memory_mib": 999}
    runner, _, _ = start(config=CONFIG.model_copy(update=other))
    runner.adopt()
    assert runner.running is not None


async def test_weights_that_were_changed_meanwhile_are_not_gone_on_with(stopped, start, filled):
    cycle, _, _ = stopped
    runner, _, training = start()
    step = runner._workshop.work_dir / cycle.id / "step-01" / "adapter_model.safetensors"
    step.write_bytes(step.read_bytes()[:-1] + b"\x01")
    runner.adopt()
    runner.take_up()
    await ended(runner)
    found = filled.cycles.get(cycle.id)
    assert (found.state, training.trained) == (CycleState.INTERRUPTED, [])
    assert "step-01 cannot be gone on from" in (found.end_reason or "")


async def test_rows_of_other_sources_are_trained_counted_and_noted_with_the_version(start, filled):
    runner, _, training = start(extra_rows=[Rehearsal()])
    cycle = runner.start([SKILL], reason="a test")
    await ended(runner)
    assert [len(rows.splitlines()) for rows in training.trained] == [2 * 2 + 1] * 3
    receipt = filled.cycles.steps(cycle.id)[0].receipt
    assert (receipt["num_rows"], receipt["rehearsed"], receipt["num_groups"]) == (5, 1, 4)
    assert receipt["skipped_groups"] == {"stale": 1}
    assert "ep_old" in filled.versions.episodes_of("denizen-000001")


@pytest.mark.parametrize("erased", ["ep_live", "a try"])
async def test_erasing_what_a_cycle_works_with_stops_it_and_leaves_no_file(
    start, filled, tmp_path, erased
):
    runner, _, training = start()
    training.hangs_at = 2
    cycle = runner.start([SKILL], reason="a test")
    await training.reached.wait()
    await runner.let_go(["ep_of_nobody"])
    assert runner.running is not None
    tries = filled.cycles.episodes_of(dataclasses.replace(STEP, cycle_id=cycle.id))
    await runner.let_go([erased if erased == "ep_live" else min(tries)])
    found = filled.cycles.get(cycle.id)
    assert (runner.running, found.state) == (None, CycleState.INTERRUPTED)
    assert "was erased" in (found.end_reason or "")
    assert not (tmp_path / "work" / cycle.id).exists()
    assert filled.versions.all() == []


async def test_erasing_what_a_waiting_cycle_works_with_ends_it(stopped, start, filled, tmp_path):
    cycle, _, _ = stopped
    runner, _, _ = start(is_ready=False)
    runner.adopt()
    await runner.let_go(["ep_live"])
    assert (runner.running, filled.cycles.get(cycle.id).state) == (None, CycleState.INTERRUPTED)
    assert not (tmp_path / "work" / cycle.id).exists()
